//! Client of one chat: reads the events of a stream, and when they arrive.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use crate::bench::server::{CHAT, Server, error_message};

/// The times of one answer.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    /// Time to the first token.
    pub(super) first: Duration,
    /// Times between tokens.
    pub(super) gaps: Vec<Duration>,
    /// Output tokens.
    pub(super) tokens: usize,
}

/// Sends a chat of one message, and reads an answer of `tokens` tokens.
pub(super) fn chat(server: &Server, message: &str, tokens: usize) -> anyhow::Result<Answer> {
    let body = json!({
        "model": server.model(), "messages": [{ "role": "user", "content": message }], "max_tokens": tokens,
        "temperature": 0, "ignore_eos": true, "stream": true, "stream_options": { "include_usage": true },
    });
    let started = Instant::now();
    let stream = BufReader::new(server.post(CHAT, &body)?.into_reader());
    let answer = read(stream, || started.elapsed());
    answer.with_context(|| format!("invalid stream of `{}`", server.url()))
}

/// Reads a stream of server-sent events. `elapsed` is the time since the request.
fn read(stream: impl BufRead, elapsed: impl Fn() -> Duration) -> anyhow::Result<Answer> {
    let (mut times, mut counted) = (Vec::new(), None);
    let mut is_complete = false;
    for line in stream.lines() {
        let line = line.map_err(|error| anyhow!("it was interrupted: {error}\nhint: raise `--timeout`"))?;
        let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
        if data == "[DONE]" {
            is_complete = true;
            break;
        }
        let event: Value = serde_json::from_str(data).context("an event is not JSON")?;
        if event.get("error").is_some_and(|error| !error.is_null()) {
            bail!("the server failed{}", error_message(data.as_bytes()));
        }
        let delta = &event["choices"][0]["delta"];
        let has_text = |key: &str| delta[key].as_str().is_some_and(|text| !text.is_empty());
        if ["content", "reasoning_content", "reasoning"].into_iter().any(has_text) {
            times.push(elapsed());
        }
        counted = event["usage"]["completion_tokens"].as_u64().or(counted);
    }
    if !is_complete {
        bail!("it ended without `[DONE]`");
    }
    // The text of special tokens is not sent: an answer without text is known at its end.
    let first = times.first().copied().unwrap_or_else(&elapsed);
    let gaps = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    // Servers without usage send an event per token.
    let tokens = counted.map_or(times.len(), |tokens| tokens as usize);
    if tokens == 0 {
        bail!("it has no tokens");
    }
    Ok(Answer { first, gaps, tokens })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads a stream, with one second between readings of the clock.
    fn answer(stream: &str) -> anyhow::Result<Answer> {
        let seconds = Cell::new(0);
        read(stream.as_bytes(), || {
            seconds.set(seconds.get() + 1);
            Duration::from_secs(seconds.get())
        })
    }

    fn event(text: &str) -> String {
        format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] }))
    }

    #[test]
    fn events_with_text_are_timed_and_usage_is_the_number_of_tokens() {
        let usage = "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 9}}\n\n";
        let end = "data: [DONE]\n\n";
        let role = "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\r\n\r\n";
        let reasoning = "data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"a\"}}]}\n\n";
        let texts = format!("{role}: a comment\n\n{reasoning}{}{}", event("b"), event("c"));
        let second = Duration::from_secs(1);
        let wanted = |tokens| Answer { first: second, gaps: vec![second; 2], tokens };
        assert_eq!(answer(&format!("{texts}{usage}{end}")).expect("a stream"), wanted(9));
        assert_eq!(answer(&format!("{texts}{end}")).expect("a stream"), wanted(3));
        let special = answer(&format!("{role}{usage}{end}")).expect("a stream");
        assert_eq!(special, Answer { first: second, gaps: Vec::new(), tokens: 9 });
    }

    #[test]
    fn broken_streams_are_rejected() {
        for (stream, words) in [
            (event("a"), "without `[DONE]`"),
            (format!("{}data: [DONE]\n\n", event("")), "no tokens"),
            ("data: {\n\n".to_owned(), "not JSON"),
            ("data: {\"error\": {\"message\": \"out of memory\"}}\n\n".to_owned(), "failed: out of memory"),
        ] {
            let error = answer(&stream).expect_err(words);
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
