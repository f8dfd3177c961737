//! `sconce chat`: a conversation in the terminal, or with turns from a pipe.

mod command;
mod input;
mod interrupt;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::Context;
use sconce::{ChatOptions, Error, FinishReason, GenerateOptions, Generation, Message, Model, TemplateError};

use crate::arguments;
use crate::open_model::open;
use crate::terminal::{eprint_line, is_broken_pipe, pluralize, print, print_error};
use command::Command;
use input::{Input, Turn};
use interrupt::Interrupt;

/// Temperature of users that set none.
const TEMPERATURE: f32 = 0.7;
/// Interval between checks for Ctrl-C.
const POLL: Duration = Duration::from_millis(50);

pub(crate) fn run(arguments: &arguments::Chat) -> anyhow::Result<ExitCode> {
    let options = arguments.sampling.options(TEMPERATURE, arguments.max_tokens);
    options.validate()?;
    // One sequence: the placement whose single steps are the fastest.
    let model = open(&arguments::ModelArguments { latency: true, ..arguments.model.clone() }, None)?;
    if model.card().generation.chat_templates.is_none() {
        return Err(Error::from(TemplateError::Missing).into());
    }
    let variables = arguments.set.iter().cloned().collect();
    let chat = ChatOptions { variables, ..ChatOptions::default() };
    let messages = arguments.system.iter().map(|text| Message::system(text.as_str())).collect();
    let mut session = Session { model, chat, options, messages, interrupt: Interrupt::new()? };
    let is_terminal = io::stdin().is_terminal();
    if is_terminal {
        let placement = session.model.placement().map(|placement| placement.to_string()).unwrap_or_default();
        eprint_line(&format!("{} on {placement}; `/help` lists the commands", session.model.card().name));
    }
    let mut input = Input::new(io::stdin().lock(), is_terminal);
    while let Some(turn) = input.turn().context("standard input can't be read")? {
        match session.take(turn) {
            Ok(true) => {}
            Ok(false) => break,
            // In a terminal the user can try again.
            Err(error) if is_terminal && !is_broken_pipe(&error) => print_error(&error),
            Err(error) => return Err(error),
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Session {
    model: Model,
    chat: ChatOptions,
    options: GenerateOptions,
    messages: Vec<Message>,
    interrupt: Interrupt,
}

impl Session {
    /// Executes a command, or answers a message. Returns whether the conversation goes on.
    fn take(&mut self, turn: Turn) -> anyhow::Result<bool> {
        match turn {
            Turn::Message(text) => self.answer(text)?,
            Turn::Command(line) => match Command::parse(&line)? {
                Command::System(text) => {
                    self.messages.retain(|message| message.role() != "system");
                    if !text.is_empty() {
                        self.messages.insert(0, Message::system(text));
                    }
                }
                Command::Clear => self.messages.retain(|message| message.role() == "system"),
                Command::Save(file) => self.save(&file)?,
                Command::Load(file) => self.load(&file)?,
                Command::Help => eprint_line(command::HELP),
                Command::Exit => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Answers a message. Without an answer, the message leaves the conversation.
    fn answer(&mut self, text: String) -> anyhow::Result<()> {
        self.messages.push(Message::user(text));
        let _answering = self.interrupt.answering();
        match self.generate() {
            Ok(answer) => {
                self.messages.push(Message::assistant(answer));
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Prints the answer as it arrives, until it ends or the user interrupts it.
    fn generate(&mut self) -> anyhow::Result<String> {
        let started = Instant::now();
        let mut generation = self.model.chat_with(&self.messages, &self.chat, &self.options)?;
        let (mut answer, mut tokens, mut first) = (String::new(), 0, None);
        while !self.interrupt.is_raised() {
            match generation.next_timeout(POLL) {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(piece)) => {
                    let piece = piece.map_err(|error| self.explain(error, &generation))?;
                    first.get_or_insert_with(|| started.elapsed());
                    tokens += usize::from(piece.token.is_some());
                    answer += &piece.text;
                    print(&piece.text)?;
                }
            }
        }
        if !answer.ends_with('\n') {
            print("\n")?;
        }
        let decoding = started.elapsed().saturating_sub(first.unwrap_or_default());
        eprint_line(&self.status(&generation, tokens, decoding));
        Ok(answer)
    }

    /// Adds a hint to the error of a conversation that is too long.
    fn explain(&self, error: Error, generation: &Generation) -> anyhow::Error {
        let (used, limit) = (generation.summary().prompt_tokens, self.model.card().max_length.value);
        if used < limit {
            return error.into();
        }
        anyhow::anyhow!(
            "the conversation has {used} tokens, and the context of the model {limit}\n\
             hint: `/clear` removes all messages but the system prompt"
        )
    }

    /// A line with rate, placement and the use of the context.
    fn status(&self, generation: &Generation, tokens: usize, decoding: Duration) -> String {
        let summary = generation.summary();
        let rate = tokens.saturating_sub(1) as f64 / decoding.as_secs_f64().max(1e-9);
        let placements: Vec<String> = summary.placements.iter().map(ToString::to_string).collect();
        let (used, limit) = (summary.prompt_tokens + tokens, self.model.card().max_length.value);
        let ended = match summary.finish_reasons.first().copied().flatten() {
            None => ", stopped",
            Some(FinishReason::Length) if used >= limit => ", stopped at the end of the context",
            Some(FinishReason::Length) => ", stopped at the maximum number of tokens",
            Some(FinishReason::Stop) => "",
        };
        format!(
            "[{}{ended}, {rate:.1} tokens/s on {}; context: {used} of {limit} tokens]",
            pluralize(tokens, "token"),
            placements.join(", then "),
        )
    }

    fn save(&self, file: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.messages)? + "\n";
        fs::write(file, text).with_context(|| format!("could not write: `{}`", file.display()))?;
        eprint_line(&format!("saved {} to `{}`", pluralize(self.messages.len(), "message"), file.display()));
        Ok(())
    }

    fn load(&mut self, file: &Path) -> anyhow::Result<()> {
        let text = fs::read(file).with_context(|| format!("`{}` can't be read", file.display()))?;
        self.messages = serde_json::from_slice(&text)
            .with_context(|| format!("`{}` is no JSON list of messages", file.display()))?;
        eprint_line(&format!("loaded {}", pluralize(self.messages.len(), "message")));
        Ok(())
    }
}
