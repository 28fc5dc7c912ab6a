//! Which names are participles.

/// Past participles without the usual ending. Those that are nouns as well, such as `Set`, `Run`, `Read` or
/// `Bound`, do not stand here.
const IRREGULAR: [&str; 62] = [
    "Begun",
    "Born",
    "Bought",
    "Broken",
    "Brought",
    "Built",
    "Caught",
    "Chosen",
    "Come",
    "Done",
    "Drawn",
    "Driven",
    "Fallen",
    "Forgotten",
    "Found",
    "Given",
    "Gone",
    "Got",
    "Grown",
    "Heard",
    "Held",
    "Hidden",
    "Kept",
    "Known",
    "Laid",
    "Left",
    "Lent",
    "Lost",
    "Made",
    "Meant",
    "Met",
    "Overdrawn",
    "Overheard",
    "Overtaken",
    "Paid",
    "Put",
    "Risen",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Shut",
    "Slept",
    "Spent",
    "Split",
    "Spoken",
    "Spread",
    "Stolen",
    "Stood",
    "Stuck",
    "Taken",
    "Taught",
    "Thought",
    "Thrown",
    "Told",
    "Torn",
    "Understood",
    "Went",
    "Came",
    "Woken",
    "Won",
    "Written",
];
/// Words that a participle may take along and stay one: `TakenIn`, `GivenBack`.
const PARTICLES: [&str; 10] = ["Away", "Back", "Down", "In", "Off", "On", "Out", "Over", "Through", "Up"];

/// Whether a name is a past participle and no more: an irregular one, or a word in -ed. A prefix `Un` changes
/// nothing.
pub(super) fn is_participle(name: &str) -> bool {
    let particle = PARTICLES.iter().find_map(|particle| name.strip_suffix(particle));
    [Some(name), particle].into_iter().flatten().any(is_word)
}

fn is_word(name: &str) -> bool {
    let is_one_word = name.len() > 2 && !name.chars().skip(1).any(|letter| !letter.is_ascii_lowercase());
    is_one_word
        && (name.ends_with("ed")
            || IRREGULAR.iter().any(|word| {
                name == *word || name.strip_prefix("Un").is_some_and(|rest| word.to_lowercase() == rest)
            }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn participles_are_known_with_prefix_and_particle() {
        for name in
            ["Told", "Untold", "Carried", "Unclaimed", "GivenBack", "TakenIn", "Shut", "PassedOn", "Unknown"]
        {
            assert!(is_participle(name), "{name}");
        }
    }

    #[test]
    fn nouns_and_words_with_a_noun_are_none() {
        for name in
            ["Set", "Run", "Lane", "SentNak", "KeptReads", "FoundBy", "Ed", "LastSeen", "Sender", "Window"]
        {
            assert!(!is_participle(name), "{name}");
        }
    }
}
