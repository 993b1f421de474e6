//! ONNX Runtime's error messages, made readable.

/// `message` on one line, without the C++ source lines and function signatures that ONNX Runtime puts into it.
pub(crate) fn readable(message: &str) -> String {
    let mut text = String::new();
    let mut rest = message;
    while let Some((start, end)) = source_position(rest) {
        text.push_str(&rest[..start]);
        text.push(' ');
        rest = after_signature(&rest[end..]);
    }
    text.push_str(rest);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where a `/folder/file.cc:123` stands in `text`, as a range of bytes.
fn source_position(text: &str) -> Option<(usize, usize)> {
    let extension = [".cc:", ".cpp:", ".h:"].into_iter().filter_map(|end| Some((text.find(end)?, end.len()))).min()?;
    let digits = extension.0 + extension.1;
    let end = digits + text[digits..].bytes().take_while(u8::is_ascii_digit).count();
    let start = text[..extension.0].rfind(|letter: char| letter.is_whitespace() || letter == ':').map_or(0, |i| i + 1);
    (end > digits).then_some((start, end))
}

/// What follows a C++ signature (`void onnxruntime::Graph::Load(const Path &) const`), or `text` where none stands.
fn after_signature(text: &str) -> &str {
    let Some(open) = text.find('(').filter(|&open| text[..open].contains("::")) else { return text };
    let mut depth = 0_usize;
    for (index, letter) in text[open..].char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let rest = &text[open + index + 1..];
            return rest.strip_prefix(" const").unwrap_or(rest);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_lines_are_left_out() {
        let message = "Load model failed:/src/core/graph/graph.cc:1617 void onnxruntime::Graph::Load(std::function<void (int)>) \
                       const This is an invalid model.\n Graph output (x) does not exist.\n";
        assert_eq!(readable(message), "Load model failed: This is an invalid model. Graph output (x) does not exist.");
    }

    #[test]
    fn plain_messages_stay() {
        for message in ["Got: 9 Expected: 8", "see file.cc: nothing", "(a) b", "op::name at a.h:1"] {
            assert!(readable(message).starts_with(&message[..3]), "{}", readable(message));
        }
        assert_eq!(readable("Got: 9\n  Expected: 8"), "Got: 9 Expected: 8");
    }

    #[test]
    fn an_unclosed_signature_stays() {
        assert_eq!(readable("/a/b.cc:1 x::y(z"), "x::y(z");
    }
}
