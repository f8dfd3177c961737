//! `sconce top`: live view of a running server.

mod sample;
mod view;

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use crossterm::{cursor, execute, queue, style, terminal};

use crate::arguments;
use crate::http_client::Client;
use crate::terminal::print;
use crate::top::sample::{Sample, sample};
use crate::top::view::render;

/// Samples in the sparkline.
const HISTORY: usize = 60;

pub(crate) fn run(arguments: &arguments::Top) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.url)?;
    if !(0.1..=3600.0).contains(&arguments.interval) {
        bail!("`--interval` must be between 0.1 and 3600 seconds: {}", arguments.interval);
    }
    let pause = Duration::from_secs_f64(arguments.interval);
    if arguments.once {
        let before = sample(&client)?;
        thread::sleep(pause);
        print(&render(&client.url, &before, &sample(&client)?, &[]))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !io::stdout().is_terminal() {
        bail!("`sconce top` needs a terminal\nhint: `sconce top --once` prints one table");
    }
    let screen = Screen::open()?;
    let watched = watch(&client, pause);
    drop(screen);
    watched.map(|()| ExitCode::SUCCESS)
}

/// Draws until the user presses `q`.
fn watch(client: &Client, pause: Duration) -> anyhow::Result<()> {
    let mut before: Option<Sample> = None;
    let mut history = VecDeque::new();
    loop {
        let began = Instant::now();
        let text = match sample(client) {
            Ok(now) => {
                let text = match &before {
                    Some(before) => {
                        history.push_back(now.tokens() - before.tokens());
                        if history.len() > HISTORY {
                            history.pop_front();
                        }
                        render(&client.url, before, &now, history.make_contiguous())
                    }
                    None => render(&client.url, &now, &now, &[]),
                };
                before = Some(now);
                text
            }
            Err(error) => {
                before = None;
                history.clear();
                format!("{error:#}\n")
            }
        };
        draw(&format!("{text}\nq quits\n"))?;
        while began.elapsed() < pause {
            if event::poll(pause.saturating_sub(began.elapsed()))? && ends(&event::read()?) {
                return Ok(());
            }
        }
    }
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || control && key.code == KeyCode::Char('c')
}

/// Draws text on the screen, clipped to its size.
fn draw(page: &str) -> io::Result<()> {
    let (columns, rows) = terminal::size()?;
    let mut output = io::stdout().lock();
    queue!(output, cursor::MoveTo(0, 0))?;
    for line in page.lines().take(usize::from(rows)) {
        let line: String = line.chars().take(usize::from(columns)).collect();
        let end = terminal::Clear(terminal::ClearType::UntilNewLine);
        queue!(output, style::Print(line), end, cursor::MoveToNextLine(1))?;
    }
    queue!(output, terminal::Clear(terminal::ClearType::FromCursorDown))?;
    output.flush()
}

/// The terminal in raw mode, restored on drop.
struct Screen;

impl Screen {
    fn open() -> io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}
