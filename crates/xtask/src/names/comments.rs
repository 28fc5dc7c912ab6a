//! Doc comments that lean on the comment before them: rustdoc shows each by itself. And comments with lines
//! that are too long, which rustfmt leaves as they are.

/// The width of a line, in characters, as rustfmt.toml has it.
const WIDTH: usize = 110;

/// First words that mean nothing without another comment, or without the item's code.
const LEANING: [&str; 61] = [
    "The same",
    "Of the same",
    "As of",
    "As [",
    "How.",
    "See the module",
    "They ",
    "Those ",
    "That ",
    "Their ",
    "And ",
    "Such ",
    "Likewise",
    "It ",
    "It's ",
    "Its ",
    "Them",
    "These.",
    "Whether it ",
    "Whether its ",
    "Whether they ",
    "What it ",
    "What they ",
    "When it ",
    "When they ",
    "Where it ",
    "Where they ",
    "How it ",
    "How they ",
    "Why it ",
    "Why they ",
    "All of it",
    "All of them",
    "Some of it",
    "Some of them",
    "One of them",
    "Part of it",
    "A part of it",
    "None of them",
    "Nothing of it",
    "By which ",
    "By this ",
    "By that ",
    "By itself",
    "Of it",
    "Of its ",
    "Of them",
    "Of this.",
    "Of those ",
    "Of these ",
    "There is none",
    "There are none",
    "There are some",
    "Until then",
    "What.",
    "Why.",
    "Where.",
    "When.",
    "What to do.",
    "Bytes.",
    "See above",
];

/// The text of a line that is a comment alone.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    let text = text.strip_prefix(['/', '!']).unwrap_or(text);
    if text.is_empty() { Some("") } else { text.strip_prefix(' ') }
}

/// The lines, from 1, in which a comment is longer than [`WIDTH`]; with their lengths. Code in a doc comment,
/// rows of a table and long addresses cannot be broken.
pub(super) fn long(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (place, line) in text.lines().enumerate() {
        let Some(text) = comment(line) else {
            is_code = false;
            continue;
        };
        is_code ^= text.trim_start().starts_with("```");
        let length = line.chars().count();
        let has_places = text.trim().contains(' ') && !text.starts_with('|');
        if length > WIDTH && !is_code && has_places {
            found.push((place + 1, length));
        }
    }
    found
}

/// The text of a line of a doc comment.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    if text.is_empty() { Some("") } else { text.strip_prefix(' ') }
}

/// The lines, from 1, in which a doc comment begins with such words; with these words.
pub(super) fn leaning(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (place, line) in text.lines().enumerate() {
        let text = doc(line);
        if let Some(text) = text.filter(|_| !is_inside) {
            let words = LEANING.iter().find(|words| text.starts_with(**words));
            found.extend(words.map(|words| (place + 1, words.trim_end())));
        }
        is_inside = text.is_some();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_leans_on_another_is_found_at_its_beginning_alone() {
        let text = "//! A module.\n\n/// A length, in bytes.\n/// The same as before.\nfn a() {}\n/// The same, of a peer.\nfn b() {}\n    /// Thatch.\n";
        assert_eq!(leaning(text), [(6, "The same")]);
        assert_eq!(leaning("    //! That of a peer.\n"), [(1, "That")]);
        assert_eq!(leaning("// The same.\nlet a = \"/// The same\";\n"), []);
    }

    #[test]
    fn a_line_of_a_comment_has_room_beside_others() {
        let words = "a word ".repeat(16);
        let (at_most, longer) = (format!("/// {}", &words[..106]), format!("    // {words}"));
        assert_eq!(
            long(&format!("{at_most}\n{longer}\nlet a = 1; {longer}\n//! {words}")),
            [(2, 119), (4, 116)]
        );
        assert_eq!(long(&format!("/// ```\n/// {words}\n/// ```\n/// {words}")), [(4, 116)]);
        assert_eq!(long(&format!("/// https://{}", "a/".repeat(60))), []);
        assert_eq!(long(&format!("/// | {words}|\nlet a = \"\n{words}\";")), []);
    }

    #[test]
    fn a_comment_that_begins_with_a_pronoun_says_nothing_of_its_item() {
        let begins = |comment: &str| leaning(&format!("struct Lane {{\n    /// {comment}\n}}\n"));
        for (comment, words) in [
            ("It is about to be polled.", "It"),
            ("Its number.", "Its"),
            ("Whether it is watched.", "Whether it"),
            ("Where it lies.", "Where it"),
            ("All of them, oldest first.", "All of them"),
            ("By which the peer finds it.", "By which"),
            ("Bytes.", "Bytes."),
            ("Why.", "Why."),
        ] {
            assert_eq!(begins(comment), [(2, words)], "{comment}");
        }
        for comment in [
            "Items of the lane.",
            "Whether items wait. It is asked for each packet.",
            "Bytes of a marker.",
            "Where the item is.",
            "Why the lane stands still.",
        ] {
            assert_eq!(begins(comment), [], "{comment}");
        }
    }
}
