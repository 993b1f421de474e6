//! What exporters call the same state before and after a step.

/// Words that say when, not what. Those of the second list say "before" of an input, of the third "after" of an output.
const PLAIN: [&str; 6] = ["in", "ins", "input", "inputs", "state", "states"];
const BEFORE: [&str; 8] = ["prev", "prv", "previous", "old", "last", "init", "initial", "past"];
const AFTER: [&str; 12] =
    ["out", "outs", "output", "outputs", "next", "new", "n", "t", "after", "present", "update", "updated"];

/// Words that say memory. After a name that holds one, a number may be what makes the next value's name another.
const MEMORY: [&str; 12] = ["h", "c", "hx", "cx", "hidden", "cell", "lstm", "gru", "rnn", "mem", "memory", "recurrent"];

/// Whether an output is called the next value of the state that an input is.
pub fn names_next_value(input: &str, output: &str) -> bool {
    StateName::of(input).becomes(&StateName::of(output))
}

/// A state's name in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StateName {
    /// What is left without words for before and after: alike for a state and its next value. Empty where nothing is left.
    pub(super) stem: String,
    /// The same without numbers, or only whether it is a hidden (`h`) or a cell state (`c`).
    pub(super) kind: String,
    is_before: bool,
    is_after: bool,
}

impl StateName {
    pub(super) fn of(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let words = words(&name);
        let has = |list: &[&str]| words.iter().any(|word| list.contains(word));
        let is_number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
        let said = |word: &&str| !PLAIN.contains(word) && !BEFORE.contains(word) && !AFTER.contains(word);
        let mut left: Vec<&str> = words.iter().copied().filter(said).collect();
        if left.iter().all(|word| is_number(word)) {
            // `state_in_0` is a name; `output_0` is a place.
            if has(&["state", "states"]) {
                left.insert(0, "state");
            } else {
                left.clear();
            }
        }
        let kinds: Vec<&str> = left.iter().copied().filter_map(hidden_or_cell).collect();
        let kind = match kinds[..] {
            [kind] => kind.to_owned(),
            _ => left.iter().copied().filter(|word| !is_number(word)).collect::<Vec<_>>().join("_"),
        };
        Self { stem: left.join("_"), kind, is_before: has(&BEFORE), is_after: has(&AFTER) }
    }

    /// Whether the output `next` is called the next value of this input.
    pub(super) fn becomes(&self, next: &Self) -> bool {
        let is_next = self.stem == next.stem && (self.is_before || next.is_after);
        !self.stem.is_empty() && (is_next || self.is_numbered(next))
    }

    /// Whether the names differ by one number at the end: `lstm_h` and `lstm_h_1`, `h_t_1` and `h_t`.
    fn is_numbered(&self, next: &Self) -> bool {
        let says_memory = self.stem.split('_').any(|word| MEMORY.contains(&word));
        let is_shorter = |short: &str, long: &str| {
            let number = long.strip_prefix(short).and_then(|rest| rest.strip_prefix('_'));
            number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        says_memory && (is_shorter(&self.stem, &next.stem) || (next.is_after && is_shorter(&next.stem, &self.stem)))
    }
}

/// The name cut at whatever is no letter, and before and after numbers.
fn words(name: &str) -> Vec<&str> {
    let is_number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    name.split(|char: char| !char.is_ascii_alphanumeric())
        .flat_map(|word| {
            let (mut words, mut rest) = (Vec::new(), word);
            while !rest.is_empty() {
                let numeric = is_number(rest);
                let end = rest.find(|char: char| char.is_ascii_digit() != numeric).unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                words.push(word);
                rest = after;
            }
            words
        })
        .collect()
}

/// Torch calls them `hx` and `cx`, ONNX's and torch's documentation `h0` and `hn`, or `hy`.
fn hidden_or_cell(word: &str) -> Option<&'static str> {
    match word {
        "h" | "hx" | "hy" | "hn" | "hidden" => Some("h"),
        "c" | "cx" | "cy" | "cn" | "cell" => Some("c"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_and_its_next_value_have_one_stem() {
        for (before, after) in [
            ("x_in", "x_out"),
            ("x", "x_next"),
            ("x", "next_x"),
            ("x", "new_x"),
            ("x", "x_new"),
            ("x", "x_n"),
            ("hx", "hx_t"),
            ("x_prev", "x"),
            ("state_h", "next_h"),
            ("lstm_h", "lstm_h_next"),
            ("state_in_0", "state_out_0"),
            ("state", "next_state"),
            ("RNN_states", "output_rnn_states"),
            ("lstm_h", "lstm_h_1"),
            ("hidden.1", "hidden_out"),
            ("h_t_1", "h_t"),
            ("past_key", "present_key"),
            ("mem", "mem_updated"),
            ("agent_state", "updated_agent_state"),
        ] {
            assert!(StateName::of(before).becomes(&StateName::of(after)), "{before} {after}");
        }
        for (before, after) in [
            ("state_in_0", "state_out_1"),
            ("input_0", "output_0"),
            ("hc0.0", "output_1.0"),
            ("obs", "output"),
            ("depth", "depth"),
            ("h_in", "c_out"),
            ("state_inner", "state_outer"),
            ("goal", "goal_1"),
            ("state", "state_1"),
            ("h_1", "h_2"),
            ("h_1", "h"),
            ("hidden", "hidden_size"),
        ] {
            assert!(!StateName::of(before).becomes(&StateName::of(after)), "{before} {after}");
        }
        for (before, after) in [("h0", "hn"), ("cx", "cy"), ("hidden", "h_n"), ("lstm_cell", "c_out")] {
            assert_eq!(StateName::of(before).kind, StateName::of(after).kind);
        }
        assert_ne!(StateName::of("hidden").kind, StateName::of("c_n").kind);
    }
}
