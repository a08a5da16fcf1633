//! Devices of Burn servers, over WebSocket.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use burn::{
    remote::RemoteHost,
    server::{RemoteServer, WebSocketTransport},
    tensor::Device,
};

use crate::{
    checkpoint::interrupt::exit_at_once,
    console::terminal,
    options::Serve,
    replica::{chosen_devices, open_devices, visible_devices},
    run_record::package,
    workers::Alone,
};

/// Default port of a server in `--hosts`.
const PORT: u16 = 3000;

/// Interval between probes of a server.
const PROBE: Duration = Duration::from_secs(1);

/// Timeout of one probe.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server in `--hosts`: `HOST`, `HOST:PORT` or `ws://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server(String);

impl Server {
    fn parse(text: &str) -> Result<Self> {
        let address = text.strip_prefix("ws://").unwrap_or(text);
        ensure!(
            !address.is_empty() && !address.contains(['/', '@', ' ']),
            "--hosts: {text:?} is not HOST or HOST:PORT"
        );
        // A port follows the last colon outside of the brackets of an IPv6 address.
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        Ok(Server(match has_port {
            true => address.to_owned(),
            false => format!("{address}:{PORT}"),
        }))
    }

    /// Checks that a server responds, even if with an HTTP error, to a minimal request.
    fn probe(&self) -> io::Result<()> {
        let address = self.0.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        match stream.read(&mut [0; 64])? {
            0 => Err(io::Error::other("the connection was closed")),
            _ => Ok(()),
        }
    }

    fn devices(&self) -> Result<Vec<Device>> {
        let cannot = |reason: &dyn fmt::Display| {
            anyhow!(
                "the Burn server {self} cannot be reached: {reason}. Start one there with `{} serve \
                 --address 0.0.0.0:{PORT}`, and check that no firewall blocks it",
                package().name
            )
        };
        // Probe first, as Burn would retry for half a minute.
        self.probe().map_err(|error| cannot(&error))?;
        let devices = RemoteHost::websocket(&format!("ws://{self}")).devices();
        Ok(devices
            .map_err(|error| cannot(&error))?
            .into_iter()
            .collect())
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Connects to the servers of `--hosts`; returns their devices, by server. From then on, a server that
/// does not respond for `timeout` ends the program, unless `timeout` is zero.
///
/// # Errors
/// `hosts` is empty or has duplicates, or a host is unreachable.
pub fn connect_servers(hosts: &[String], timeout: Duration) -> Result<Vec<Device>> {
    ensure!(
        !hosts.is_empty(),
        "--strategy remote needs the Burn servers whose devices to use: --hosts HOST:PORT,..."
    );
    let (mut servers, mut devices) = (Vec::new(), Vec::new());
    for host in hosts {
        let server = Server::parse(host)?;
        ensure!(!servers.contains(&server), "--hosts names {server} twice");
        devices.extend(server.devices()?);
        servers.push(server);
    }
    if !timeout.is_zero() {
        for server in servers {
            let watch = thread::Builder::new().name(format!("watch-{server}"));
            watch.spawn(move || watch_server(&server, timeout))?;
        }
    }
    Ok(devices)
}

/// Serves the devices of this machine until a signal ends it.
///
/// # Errors
/// The address is unavailable, or a device does not exist.
pub fn serve(options: &Serve, indices: Option<&[usize]>) -> Result<()> {
    let cannot = || format!("cannot listen on {}", options.address);
    let listener = TcpListener::bind(&options.address).with_context(cannot)?;
    let address = listener.local_addr().with_context(cannot)?;
    let devices = chosen_devices(visible_devices(), indices, &Alone::default())?;
    open_devices(&devices)?;
    terminal::print(format_args!(
        "serves {} device(s) on {address}",
        devices.len()
    ));
    let served = RemoteServer::new(devices).serve(WebSocketTransport::from_listener(listener));
    served.with_context(|| format!("the server on {address} failed"))
}

/// Ends the program if the server is lost, since a replica blocked on it cannot be released.
fn watch_server(server: &Server, timeout: Duration) {
    let mut answered = Instant::now();
    loop {
        let probed = server.probe();
        let silence = answered.elapsed();
        match probed {
            Ok(()) => answered = Instant::now(),
            // The next probe may take this long.
            Err(problem) if silence + PROBE + PATIENCE > timeout => {
                terminal::warn(format_args!(
                    "error: the Burn server {server} has not answered for {:.0} s ({problem}): see \
                     whether it runs and the network works, then continue with --resume, or \
                     increase --timeout",
                    silence.as_secs_f64()
                ));
                exit_at_once(1);
            }
            Err(_) => {}
        }
        thread::sleep(PROBE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_port() {
        let parsed = |text| Server::parse(text).map(|server| server.to_string());
        assert_eq!(parsed("gpu").unwrap(), "gpu:3000");
        assert_eq!(parsed("gpu:80").unwrap(), "gpu:80");
        assert_eq!(parsed("ws://10.0.0.1:80").unwrap(), "10.0.0.1:80");
        assert_eq!(parsed("[::1]").unwrap(), "[::1]:3000");
        assert_eq!(parsed("[::1]:80").unwrap(), "[::1]:80");
        for wrong in ["", "ws://", "http://gpu", "a b"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
