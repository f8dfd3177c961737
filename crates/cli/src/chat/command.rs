//! Commands of a chat: lines that begin with `/`.

use std::path::PathBuf;

use anyhow::bail;

/// The text of `/help`.
pub(super) const HELP: &str = "\
/system TEXT  set the system prompt; without TEXT, remove it
/clear        remove all messages but the system prompt
/save FILE    write the messages as JSON
/load FILE    replace the messages by those of a file
/exit         end the chat; so do Ctrl-C and Ctrl-D
A line that ends with \\ continues on the next one. Lines between \"\"\" and \"\"\" are one message.
Ctrl-C stops an answer.";

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    System(String),
    Clear,
    Save(PathBuf),
    Load(PathBuf),
    Help,
    Exit,
}

impl Command {
    pub(super) fn parse(line: &str) -> anyhow::Result<Command> {
        let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim();
        Ok(match name {
            "/system" => Command::System(argument.to_owned()),
            "/save" | "/load" if argument.is_empty() => bail!("`{name}` needs a file name"),
            "/save" => Command::Save(argument.into()),
            "/load" => Command::Load(argument.into()),
            "/clear" | "/help" | "/exit" if !argument.is_empty() => bail!("`{name}` takes no argument"),
            "/clear" => Command::Clear,
            "/help" => Command::Help,
            "/exit" => Command::Exit,
            _ => bail!(
                "no command is called `{name}`\n\
                 hint: `/help` lists the commands; a message that begins with `/` goes between \"\"\""
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_an_argument_or_none() {
        let parsed = |line: &str| Command::parse(line).expect("a command");
        assert_eq!(parsed("/system  Be brief. "), Command::System("Be brief.".to_owned()));
        assert_eq!(parsed("/system"), Command::System(String::new()));
        assert_eq!(parsed("/system one\ntwo"), Command::System("one\ntwo".to_owned()));
        assert_eq!(parsed("/save a b.json"), Command::Save("a b.json".into()));
        assert_eq!(parsed("/load a.json"), Command::Load("a.json".into()));
        assert_eq!(
            [parsed("/clear"), parsed("/help"), parsed("/exit ")],
            [Command::Clear, Command::Help, Command::Exit]
        );
        for (line, words) in
            [("/save", "needs a file name"), ("/exit now", "no argument"), ("/etc", "`/etc`")]
        {
            let refused = Command::parse(line).expect_err("it is invalid").to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
