//! `sconce top`: what a running server does, while it does it.

mod page;
mod sample;

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use crossterm::{cursor, execute, queue, style, terminal};

use crate::arguments;
use crate::screen::print;
use crate::top::page::page;
use crate::top::sample::{Asker, Sample};

/// Samples that the picture of the last while is drawn from.
const HISTORY: usize = 60;

pub(crate) fn run(arguments: &arguments::Top) -> anyhow::Result<ExitCode> {
    let asker = Asker::new(&arguments.url)?;
    if !(0.1..=3600.0).contains(&arguments.interval) {
        bail!("`--interval` is 0.1 to 3600 seconds, not: {}", arguments.interval);
    }
    let pause = Duration::from_secs_f64(arguments.interval);
    if arguments.once {
        let before = asker.ask()?;
        thread::sleep(pause);
        print(&page(&asker.url, &before, &asker.ask()?, &[]))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !io::stdout().is_terminal() {
        bail!("`sconce top` draws on a terminal, and this is none\nhint: `--once` prints one table");
    }
    let screen = Screen::open()?;
    let watched = watch(&asker, pause);
    drop(screen);
    watched.map(|()| ExitCode::SUCCESS)
}

/// Draws until somebody presses `q`.
fn watch(asker: &Asker, pause: Duration) -> anyhow::Result<()> {
    let mut before: Option<Sample> = None;
    let mut history = VecDeque::new();
    loop {
        let began = Instant::now();
        let text = match asker.ask() {
            Ok(now) => {
                let text = match &before {
                    Some(before) => {
                        history.push_back(now.tokens() - before.tokens());
                        if history.len() > HISTORY {
                            history.pop_front();
                        }
                        page(&asker.url, before, &now, history.make_contiguous())
                    }
                    None => page(&asker.url, &now, &now, &[]),
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
        draw(&format!("{text}\nq ends\n"))?;
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

/// Puts a page on the screen, as much of it as there is room for.
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

/// The terminal, given back as it was.
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
