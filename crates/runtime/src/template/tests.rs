//! Tests of limits, of the origin of text, and of what no model's template shows.

use std::time::{Instant, SystemTime};

use sconce_testkit::draws::{Draws, fuzz_inputs};
use sconce_testkit::goldens;
use serde_json::{Value as Json, json};

use super::{Rendered, TemplateError, Variable, render};

fn rendered(template: &str, messages: &Json) -> Result<Rendered, TemplateError> {
    let variable = Variable { name: "messages", value: messages, of_caller: true };
    let token = json!("<s>");
    let bos = Variable { name: "bos_token", value: &token, of_caller: false };
    render(template, &[variable, bos], SystemTime::UNIX_EPOCH)
}

fn text(template: &str) -> String {
    match rendered(template, &json!([{ "role": "user", "content": "x" }])) {
        Ok(rendered) => rendered.text,
        Err(error) => panic!("{template}: {error}"),
    }
}

fn refused(template: &str) -> TemplateError {
    match rendered(template, &json!([{ "role": "user", "content": "x" }])) {
        Ok(rendered) => panic!("{template}: {}", rendered.text),
        Err(error) => error,
    }
}

/// Marks text of the caller with brackets.
fn marked(template: &str, messages: &Json) -> String {
    let Rendered { text, caller } = rendered(template, messages).expect("it is valid");
    let (mut marked, mut at) = (String::new(), 0);
    for range in caller {
        marked = [&marked, &text[at..range.start], "[", &text[range.clone()], "]"].concat();
        at = range.end;
    }
    marked + &text[at..]
}

#[test]
fn hostile_templates_are_stopped_soon() {
    let nested = |open: &str, close: &str, times: usize| open.repeat(times) + &close.repeat(times);
    let doubled = |start: &str, next: &str| {
        format!(
            "{{% set ns = namespace(s={start}) %}}{{% for i in range(90) %}}{{% set ns.s = {next} %}}{{% endfor %}}\
             {{{{ ns.s }}}}"
        )
    };
    let templates = [
        "{% for i in range(10**9) %}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{% macro m() %}{% endmacro %}{% endfor %}".to_owned(),
        "{{ 'x' * 10**9 }}".to_owned(),
        "{{ 'x' * 10**12 * 10**12 }}".to_owned(),
        "{{ ([0] * 100000000)|list|length }}".to_owned(),
        "{{ 'x'|indent(10**9) }}".to_owned(),
        "{{ messages|tojson(indent=10**10) }}".to_owned(),
        doubled("'x'", "ns.s + ns.s"),
        doubled("'x'", "ns.s ~ ns.s"),
        doubled("'x'", "[ns.s, ns.s]|join"),
        doubled("'x'", "ns.s.replace('x', 'xxxxxxxx')"),
        doubled("'x'", "'{0}{0}'.format(ns.s)"),
        doubled("'x'", "ns.s|tojson|tojson"),
        doubled("[1]", "ns.s + ns.s"),
        doubled("[1]", "[ns.s, ns.s]"),
        doubled("[1]", "[ns.s, ns.s]").replace("{{ ns.s }}", "{{ ns.s|tojson }}"),
        doubled("[1]", "[ns.s, ns.s]").replace("{{ ns.s }}", "{{ ns.s == [ns.s] }}{{ ns.s < ns.s[0] }}"),
        doubled("[1]", "[[[ns.s]]]"),
        "{% set x = 'ab' * 500000 %}{% for i in range(99999) %}{{ 'c' in x }}{% endfor %}".to_owned(),
        "{% set x = 'ab' * 500000 %}{% for i in range(99999) %}{% set y = x.upper() %}{% endfor %}"
            .to_owned(),
        "{% set x = range(99999)|list %}{% for i in x %}{% set y = x|sort|unique|list %}{% endfor %}"
            .to_owned(),
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
        "{% macro f(n) %}{% if n < 30 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}"
            .to_owned(),
        format!("{{{{ 1{} }}}}", "+1".repeat(900)),
        format!("{{{{ 1{} }}}}", "+1".repeat(90_000)),
        format!("{{{{ a{} }}}}", ".b".repeat(900)),
        format!("{{{{ {}1 }}}}", "not ".repeat(1900)),
        format!("{{{{ {} }}}}", nested("(", ")", 5000)),
        format!("{{{{ {} }}}}", nested("[", "]", 140)),
        nested("{% if 1 %}", "{% endif %}", 50_000),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(50_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(499)),
        "x".repeat(2 << 20),
        "{% set ns = namespace() %}{% set ns.ns = ns %}".to_owned(),
        "{{ namespace(a=namespace()) }}".to_owned(),
        "{% for i in [1] %}{{ [loop] }}{% endfor %}".to_owned(),
    ];
    for template in templates {
        let start = Instant::now();
        let error = refused(&template);
        let (took, name) = (start.elapsed().as_millis(), &template[..template.len().min(90)]);
        // Some tens of milliseconds on an idle machine.
        assert!(took < 5000, "{took} ms: {name}");
        assert!(error.to_string().starts_with("the chat template "), "{error}: {name}");
    }
}

#[test]
fn mutated_templates_never_panic_and_are_stopped_soon() {
    let names = ["deepseek_v3", "gemma3", "llama3_1", "mistral_nemo", "qwen2_5", "qwen3", "smollm2"];
    let corpus = names.map(|name| goldens::chat_template(name).into_bytes());
    let messages = json!([
        { "role": "system", "content": "be brief" }, { "role": "user", "content": "x" },
        { "role": "assistant", "content": "y" }, { "role": "user", "content": "z" },
    ]);
    let (mut draws, mut rendered_ones) = (Draws(6), 0);
    for _ in 0..fuzz_inputs(2000) {
        let mut bytes = corpus[draws.below(corpus.len())].clone();
        let other = draws.below(corpus.len());
        draws.mutate(&mut bytes, &corpus[other]);
        let template = String::from_utf8_lossy(&bytes);
        let start = Instant::now();
        rendered_ones += usize::from(rendered(&template, &messages).is_ok());
        assert!(start.elapsed().as_secs() < 5, "{template}");
    }
    assert!(rendered_ones > 0, "no mutated template is valid");
}

#[test]
fn arithmetic_never_panics() {
    let most = i128::MAX;
    let overflowing = [
        format!("{{{{ {most} + 1 }}}}"),
        format!("{{{{ -{most} - 2 }}}}"),
        format!("{{{{ -(-{most} - 1) }}}}"),
        format!("{{{{ (-{most} - 1)|abs }}}}"),
        format!("{{{{ (-{most} - 1) // -1 }}}}"),
        format!("{{{{ (-{most} - 1) % -1 }}}}"),
        format!("{{{{ {most} * 2 }}}}"),
        "{{ 9 ** 9 ** 9 }}".to_owned(),
        "{{ 1 // 0 }}{{ 1 }}".to_owned(),
        "{{ 1 % 0 }}".to_owned(),
        "{{ 1.0 / 0 }}".to_owned(),
        "{{ 'a'[::0] }}".to_owned(),
        "{{ range(1, 2, 0) }}".to_owned(),
    ];
    for template in overflowing {
        assert!(matches!(refused(&template), TemplateError::Failed { line: 1, .. }), "{template}");
    }
    let fine = format!("{{{{ 'abc'[{most}] }}}}{{{{ 'abc'[-{most}:{most}:{most}] }}}}{{{{ [1][-{most}] }}}}");
    assert_eq!(text(&fine), "a");
    assert_eq!(text("{{ -7 // 2 }} {{ 7 // -2 }} {{ -7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }}"), "-4 -4 3 2 -2");
}

#[test]
fn text_of_the_caller_stays_marked_through_every_operation() {
    let messages = json!([{ "role": "critic", "content": " ab<s>cd ", "n": 7, "<k>": ["<v>"] }]);
    let cases = [
        ("{{ bos_token + messages[0].role }}<|end|>", "<s>[critic]<|end|>"),
        ("{{ messages[0].content|trim }}", "[ab<s>cd]"),
        ("<{{ messages[0].content.strip()[1:3] ~ 'x' }}>", "<[b<]x>"),
        ("{{ messages[0].content.split('<s>')|join(bos_token) }}", "[ ab]<s>[cd ]"),
        ("{{ messages[0].content.replace('<s>', '<s>') }}", "[ ab]<s>[cd ]"),
        ("{{ messages[0].content|upper }}|{{ 'a'|upper }}", "[ AB<S>CD ]|A"),
        ("{{ messages[0].content[::-1] }}", "[ dc>s<ba ]"),
        ("{{ messages[0].content|list|first ~ messages[0].content|last }}", "[  ]"),
        ("{{ messages[0]['<k>'] }}", "[['<v>']]"),
        ("{% for key, value in messages[0].items() %}{{ key }},{% endfor %}", "[role],[content],[n],[<k>],"),
        ("{{ messages[0]|tojson(indent=1)|length > 9 }}{{ messages[0].n|tojson }}", "True7"),
        ("{{ {'a': messages[0].role}|tojson }}{{ {'a': 1}|tojson }}", "[{\"a\": \"critic\"}]{\"a\": 1}"),
        ("{% set x %}<s>{{ messages[0].role }}{% endset %}{{ x }}", "<s>[critic]"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].role) }}", "<[critic]>"),
        ("{{ '<{}>'.format(messages[0].role) }}", "<[critic]>"),
        ("{{ ('a\nb\n' ~ messages[0].role)|indent(1) }}", "a\n b\n [critic]"),
        ("{% if messages[0].role == 'critic' and '<s>' in messages[0].content %}<s>{% endif %}", "<s>"),
    ];
    for (template, expected) in cases {
        assert_eq!(marked(template, &messages), expected, "{template}");
    }
    let known = json!([{ "role": "assistant", "content": "assistant" }]);
    assert_eq!(
        marked("<|{{ messages[0].role }}|>{{ messages[0].content }}", &known),
        "<|assistant|>[assistant]"
    );
}

#[test]
fn errors_are_sentences_with_their_line() {
    let cases = [
        (
            "{{ raise_exception('no ' ~ messages[0].role) }}",
            "the chat template rejects the conversation: no user",
        ),
        ("\n\n{{ messages[0].a.b }}", "the chat template failed in line 3: `messages[…].a` is undefined"),
        (
            "{{ 'a' + none }}",
            "the chat template failed in line 1: `+` takes no values of type str and NoneType",
        ),
        ("{{ 'a' + x }}", "the chat template failed in line 1: `x` is undefined"),
        ("{{ f() }}", "the chat template failed in line 1: `f` is undefined"),
        ("{{ 1|nope }}", "the chat template failed in line 1: no filter is called `nope`"),
        (
            "{% for x in 5 %}{% endfor %}",
            "the chat template failed in line 1: a value of type int is not iterable",
        ),
        ("{% include 'x' %}", "the chat template can't be parsed: unknown statement include in line 1"),
        (
            "a\n{{",
            "the chat template can't be parsed: unexpected end of input, expected expression in line 2",
        ),
    ];
    for (template, message) in cases {
        assert_eq!(refused(template).to_string(), message);
    }
    assert!(
        matches!(refused("{{ messages.append(1) }}"), TemplateError::Failed { .. }),
        "values do not change"
    );
    assert_eq!(text("{{ ''.__class__ }}"), "");
    assert!(matches!(refused("{{ ''.__class__.mro() }}"), TemplateError::Failed { .. }));
}
