//! A terminal that runs the binary, and its screen.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::{
    fs::File,
    io::{Read, Write},
    num::NonZeroU16,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rexpect::process::{PtyProcess, Signal, WaitStatus};
use rustix::termios::{Winsize, tcsetwinsize};
use vt100::Color;

/// The timeout for events that should happen at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sets the size before anything is drawn, and resets signals that the tests may ignore, for
/// example under `nohup`.
const START: &str = r#"stty rows 40 cols 80
signals="env --default-signal=HUP,INT"
$signals true 2>/dev/null || signals=
exec $signals "$0" "$@""#;

/// A running binary and its screen.
pub struct Terminal {
    process: PtyProcess,
    keyboard: File,
    shown: Arc<Mutex<Shown>>,
    reader: JoinHandle<()>,
}

struct Shown {
    parser: vt100::Parser,
    all: Vec<u8>,
}

impl Terminal {
    /// Starts the binary in a terminal of 80 columns and 40 rows.
    pub fn start(folder: &Path, args: &[&str]) -> Self {
        Self::start_with(folder, args, &[("TERM", "xterm-256color")])
    }

    /// Starts the binary with environment variables.
    pub fn start_with(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let kiln = env!("CARGO_BIN_EXE_kiln");
        Self::run(folder, kiln, args, variables)
    }

    /// Starts a program with environment variables.
    pub fn run(folder: &Path, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", START])
            .arg(program)
            .args(args)
            .current_dir(folder);
        for variable in [
            "CI",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "GIT_DIR",
            "NO_COLOR",
            "TERM",
        ] {
            command.env_remove(variable);
        }
        command.envs(variables.iter().copied());
        let mut process = PtyProcess::new(command).unwrap();
        // Interactive shells ignore the signal that ends other programs.
        process.set_kill_timeout(Some(1_000));
        let keyboard = process.get_file_handle().unwrap();
        let mut output = process.get_file_handle().unwrap();
        let shown = Arc::new(Mutex::new(Shown {
            parser: vt100::Parser::new(size(40), size(80), 1_000),
            all: Vec::new(),
        }));
        let sink = Arc::clone(&shown);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading from the terminal fails when the process has ended.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let mut shown = sink.lock().unwrap();
                shown.parser.process(&bytes[..count]);
                shown.all.extend(&bytes[..count]);
            }
        });
        Self {
            process,
            keyboard,
            shown,
            reader,
        }
    }

    /// Types keys.
    pub fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        self.shown.lock().unwrap().parser.screen().contents()
    }

    /// All output so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap().all).into_owned()
    }

    /// Waits for a state of the screen.
    pub fn wait_until(&self, what: &str, is: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is(&self.screen()) {
            assert!(
                Instant::now() < end,
                "no {what} on the screen:\n{}",
                self.screen()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the screen shows a text.
    pub fn wait(&self, text: &str) {
        self.wait_until(&format!("{text:?}"), |screen| screen.contains(text));
    }

    /// Waits until the output contains a text, ignoring line breaks of the terminal.
    pub fn wait_log(&self, text: &str) {
        self.wait_until(&format!("{text:?}"), |_| self.log().contains(text));
    }

    /// Waits until drawing has stopped.
    pub fn settle(&self) {
        let mut before = 0;
        while before != self.log().len() {
            before = self.log().len();
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Changes the width of the window.
    pub fn resize(&self, columns: u16) {
        self.resize_to(columns, 40);
    }

    /// Changes the size of the window.
    pub fn resize_to(&self, columns: u16, rows: u16) {
        let window = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keyboard, window).unwrap();
        let mut shown = self.shown.lock().unwrap();
        shown.parser.set_size(size(rows), size(columns));
    }

    /// Waits for the end; returns the exit status and all output.
    pub fn end(self) -> (WaitStatus, String) {
        let status = self.status();
        self.reader.join().unwrap();
        let shown = self.shown.lock().unwrap();
        (status, String::from_utf8_lossy(&shown.all).into_owned())
    }

    /// Closes the window and waits for the end of the binary.
    pub fn close(mut self) -> WaitStatus {
        self.process.signal(Signal::SIGHUP).unwrap();
        self.status()
    }

    /// The exit status of the binary, within the timeout.
    fn status(&self) -> WaitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.process.status() {
                Some(WaitStatus::StillAlive) => {}
                status => return status.unwrap(),
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.screen());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether any cell of the screen is coloured.
    pub fn has_colors(&self) -> bool {
        let shown = self.shown.lock().unwrap();
        let screen = shown.parser.screen();
        let colored = |cell: &vt100::Cell| cell.fgcolor() != Color::Default;
        let cells = (0..40).flat_map(|row| (0..80).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| screen.cell(row, column))
            .any(colored)
    }

    /// A picture of the screen up to its last line of text.
    pub fn picture(&self) -> String {
        self.settle();
        let shown = self.shown.lock().unwrap();
        picture(shown.parser.screen())
    }
}

fn size(cells: u16) -> NonZeroU16 {
    NonZeroU16::new(cells).unwrap()
}

fn picture(screen: &vt100::Screen) -> String {
    let (rows, columns) = screen.size();
    let lines = (0..rows.get()).map(|row| line(screen, row, columns.get()));
    let text = lines.collect::<Vec<_>>().join("\n");
    let palette = anstyle_svg::Palette(PALETTE.map(|(r, g, b)| anstyle::RgbColor(r, g, b)));
    anstyle_svg::Term::new()
        .palette(palette)
        .fg_color(anstyle::RgbColor(0xd7, 0xda, 0xe0).into())
        .bg_color(anstyle::RgbColor(0x1f, 0x24, 0x30).into())
        .min_width_px(680)
        .render_svg(text.trim_end_matches('\n'))
}

/// The sixteen colours of the pictures, as in many terminals with a dark background.
const PALETTE: [(u8, u8, u8); 16] = [
    (0x1f, 0x24, 0x30),
    (0xe0, 0x6c, 0x75),
    (0x98, 0xc3, 0x79),
    (0xe5, 0xc0, 0x7b),
    (0x61, 0xaf, 0xef),
    (0xc6, 0x78, 0xdd),
    (0x56, 0xb6, 0xc2),
    (0xab, 0xb2, 0xbf),
    (0x8b, 0x93, 0xa3),
    (0xff, 0x7a, 0x85),
    (0xa5, 0xd6, 0x84),
    (0xf0, 0xcf, 0x8f),
    (0x74, 0xbd, 0xff),
    (0xd5, 0x8c, 0xec),
    (0x66, 0xd0, 0xdd),
    (0xff, 0xff, 0xff),
];

/// A line of the screen as text with colour escapes.
fn line(screen: &vt100::Screen, row: u16, columns: u16) -> String {
    let cells: Vec<_> = (0..columns)
        .filter_map(|column| screen.cell(row, column))
        .filter(|cell| !cell.is_wide_continuation())
        .collect();
    let end = cells.iter().rposition(|cell| cell.contents().trim() != "");
    let cells = &cells[..end.map_or(0, |end| end + 1)];
    let runs = cells.chunk_by(|one, other| style(one) == style(other));
    runs.map(|run| {
        let text: String = run
            .iter()
            .map(|cell| match cell.contents() {
                "" => " ",
                text => text,
            })
            .collect();
        let style = style(run[0]);
        format!("{style}{text}{style:#}")
    })
    .collect()
}

fn style(cell: &vt100::Cell) -> anstyle::Style {
    let mut style = anstyle::Style::new()
        .fg_color(color(cell.fgcolor()))
        .bg_color(color(cell.bgcolor()));
    if cell.bold() {
        style = style.bold();
    }
    style
}

fn color(color: Color) -> Option<anstyle::Color> {
    match color {
        Color::Default => None,
        Color::Idx(at) => Some(match anstyle::Ansi256Color(at).into_ansi() {
            Some(ansi) => ansi.into(),
            None => anstyle::Ansi256Color(at).into(),
        }),
        Color::Rgb(r, g, b) => Some(anstyle::RgbColor(r, g, b).into()),
    }
}
