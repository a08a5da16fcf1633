//! MLflow's REST API, version 2.0.
//!
//! Source: <https://mlflow.org/docs/latest/api_reference/rest-api.html>.

use std::{env, fmt, fs::File, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use ureq::{
    Agent, Body, RequestBuilder,
    http::{Response, StatusCode},
    typestate::WithBody,
};

/// The value of `--mlflow` that stands for `MLFLOW_TRACKING_URI`.
const OF_ENVIRONMENT: &str = "env";

/// Environment variables of MLflow's own clients.
const URI: &str = "MLFLOW_TRACKING_URI";
const USERNAME: &str = "MLFLOW_TRACKING_USERNAME";
const PASSWORD: &str = "MLFLOW_TRACKING_PASSWORD";
const TOKEN: &str = "MLFLOW_TRACKING_TOKEN";

/// An MLflow server.
#[derive(Clone)]
pub struct Api {
    agent: Agent,
    uri: String,
    authorization: Option<String>,
}

/// A request that failed.
#[derive(Debug)]
pub enum Failure {
    /// No response.
    Unreachable(String),
    /// A response other than success.
    Refused {
        status: StatusCode,
        /// MLflow's error code, such as `RESOURCE_DOES_NOT_EXIST`; empty if the response is not of MLflow.
        code: String,
        message: String,
    },
}

impl Failure {
    /// Failure for a run in MLflow's trash, which takes no metrics.
    pub fn deleted(run: &str) -> Self {
        Failure::Refused {
            status: StatusCode::GONE,
            code: String::new(),
            message: format!("the run {run} is deleted"),
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Failure::Unreachable(_) => true,
            Failure::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
        }
    }

    /// Whether it is MLflow's error `code`.
    pub fn is(&self, code: &str) -> bool {
        matches!(self, Failure::Refused { code: own, .. } if own == code)
    }

    /// Advice for the user.
    fn advice(&self) -> String {
        let Failure::Refused { status, code, .. } = self else {
            return "is it running, and is the address right? `mlflow server` starts one"
                .to_owned();
        };
        match *status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => format!(
                "set the environment variables {USERNAME} and {PASSWORD}, or {TOKEN}, to those of a user \
                 with access"
            ),
            status if status.is_redirection() => {
                "give --mlflow the address it redirects to".to_owned()
            }
            StatusCode::NOT_FOUND if code.is_empty() => {
                "--mlflow takes the address of an MLflow server, without /api".to_owned()
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unreachable(reason) => write!(f, "no response: {reason}")?,
            Failure::Refused {
                status,
                code,
                message,
            } => {
                write!(f, "status {status}")?;
                let parts = [code, message].into_iter().filter(|part| !part.is_empty());
                parts
                    .into_iter()
                    .try_for_each(|part| write!(f, ": {part}"))?;
            }
        }
        let advice = self.advice();
        match advice.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{advice}"),
        }
    }
}

impl std::error::Error for Failure {}

impl Api {
    /// The server of `--mlflow URI`, with the credentials in the environment variables of MLflow's own clients.
    ///
    /// # Errors
    /// The URI is not the address of a server.
    pub fn new(uri: &str) -> Result<Self> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let uri = match uri == OF_ENVIRONMENT {
            true => variable(URI).with_context(|| {
                format!("--mlflow {OF_ENVIRONMENT} takes the address in {URI}, which is not set")
            })?,
            false => uri.to_owned(),
        };
        let authorization = authorization(variable(USERNAME), variable(PASSWORD), variable(TOKEN));
        Self::with_authorization(&uri, authorization)
    }

    /// The server at `uri`, with the value of the header `Authorization`.
    ///
    /// # Errors
    /// The URI is not the address of a server.
    pub fn with_authorization(uri: &str, authorization: Option<String>) -> Result<Self> {
        // As copied from a browser, which shows pages of the server after the `#`.
        let uri = uri.split('#').next().unwrap_or_default();
        let rest = ["http://", "https://"]
            .iter()
            .find_map(|scheme| uri.strip_prefix(scheme));
        let rest = rest.with_context(|| {
            format!(
                "--mlflow is {uri:?}, and takes the address of a server, such as http://localhost:5000; \
                 for files and databases, start one: `mlflow server --backend-store-uri ...`"
            )
        })?;
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // Options are recorded in files.
        ensure!(
            !host.contains('@'),
            "--mlflow has a user name or password: set {USERNAME} and {PASSWORD} instead, which are not recorded"
        );
        ensure!(!host.is_empty(), "--mlflow is {uri:?}, which names no host");
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0) // which would turn POST into GET, and pass the credentials on
            .max_redirects_will_error(false)
            .build()
            .new_agent();
        Ok(Api {
            agent,
            uri: uri.trim_end_matches('/').to_owned(),
            authorization,
        })
    }

    /// The address without a slash at its end.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The page of a run.
    pub fn page(&self, experiment: &str, run: &str) -> String {
        format!("{}/#/experiments/{experiment}/runs/{run}", self.uri)
    }

    /// Calls `path` below `api/2.0/mlflow` with query parameters.
    pub fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let request = self.agent.get(self.address(&format!("mlflow/{path}")));
        let request = request.query_pairs(query.iter().copied());
        let request = self.authorize(request).config();
        response(request.timeout_global(Some(timeout)).build().call())
    }

    /// Calls `path` below `api/2.0/mlflow` with a JSON body.
    pub fn post(&self, path: &str, body: &Value, timeout: Duration) -> Result<Value, Failure> {
        self.post_text(path, body.to_string(), timeout)
    }

    /// Calls `path` below `api/2.0/mlflow` with the text of a JSON body.
    pub fn post_text(&self, path: &str, body: String, timeout: Duration) -> Result<Value, Failure> {
        let request = self.agent.post(self.address(&format!("mlflow/{path}")));
        let request = self
            .authorize(request)
            .header("Content-Type", "application/json");
        let request = request.config().timeout_global(Some(timeout)).build();
        response(request.send(body))
    }

    /// Uploads a file to `path`, `EXPERIMENT/RUN/artifacts/NAME`, through the server.
    ///
    /// # Errors
    /// The file cannot be read, or the server refuses it.
    pub fn upload(&self, path: &str, file: &Path, timeout: Duration) -> Result<()> {
        let contents =
            File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let path = format!("mlflow-artifacts/artifacts/{path}");
        let request: RequestBuilder<WithBody> = self.agent.put(self.address(&path));
        let request = self
            .authorize(request)
            .config()
            .timeout_global(Some(timeout))
            .build();
        response(request.send(contents))?;
        Ok(())
    }

    fn address(&self, path: &str) -> String {
        format!("{}/api/2.0/{path}", self.uri)
    }

    fn authorize<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }
}

/// The value of the header `Authorization`; a password precedes a token, as in MLflow's own clients.
fn authorization(
    username: Option<String>,
    password: Option<String>,
    token: Option<String>,
) -> Option<String> {
    match (username, password, token) {
        (Some(username), Some(password), _) => {
            let both = STANDARD.encode(format!("{username}:{password}"));
            Some(format!("Basic {both}"))
        }
        (_, _, token) => token.map(|token| format!("Bearer {token}")),
    }
}

/// The JSON of a successful response; null if it has none.
fn response(result: Result<Response<Body>, ureq::Error>) -> Result<Value, Failure> {
    let unreachable = |error: ureq::Error| Failure::Unreachable(error.to_string());
    let mut response = result.map_err(unreachable)?;
    let status = response.status();
    let text = response.body_mut().read_to_string().map_err(unreachable)?;
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        return Ok(json);
    }
    let field = |name: &str| json[name].as_str().map(str::to_owned);
    let location = response.headers().get("Location");
    let location = location.and_then(|value| value.to_str().ok());
    Err(Failure::Refused {
        status,
        code: field("error_code").unwrap_or_default(),
        message: match (field("message"), location) {
            (Some(message), _) => message,
            (None, Some(location)) => location.to_owned(),
            (None, None) => first_line(&text),
        },
    })
}

/// The begin of a response that is not JSON, such as of a proxy; empty for a page.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.trim_start().starts_with('<') {
        true => String::new(),
        false => line.chars().take(200).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mlflows_clients() {
        let some = |text: &str| Some(text.to_owned());
        let basic = authorization(some("Aladdin"), some("open sesame"), some("t"));
        // The example of RFC 7617.
        assert_eq!(basic.as_deref(), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        let token = authorization(some("without a password"), None, some("t"));
        assert_eq!(token.as_deref(), Some("Bearer t"));
        assert_eq!(authorization(None, None, None), None);
    }

    #[test]
    fn addresses_that_are_not_of_servers_are_refused() {
        for (uri, message) in [
            ("localhost:5000", "such as http://localhost:5000"),
            ("sqlite:///mlflow.db", "`mlflow server --backend-store-uri"),
            ("http://", "names no host"),
            ("https://me:secret@host/", "MLFLOW_TRACKING_PASSWORD"),
        ] {
            let error = Api::with_authorization(uri, None)
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains(message), "{uri}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let api = Api::with_authorization("http://host/ml/", None).unwrap();
        assert_eq!(
            api.address("mlflow/runs/get"),
            "http://host/ml/api/2.0/mlflow/runs/get"
        );
        let api = Api::with_authorization("http://host/#/experiments/1", None).unwrap();
        assert_eq!(api.uri(), "http://host");
    }
}
