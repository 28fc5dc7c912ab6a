//! What `adverb run --check` and its variables say.

use super::profile::PROFILES;

/// Switches the check on: `on`, or a list of profiles.
pub const CHECK: &str = "ADVERB_CHECK";
/// Names the file of findings that are not to be shown.
pub const SUPPRESS: &str = "ADVERB_CHECK_SUPPRESS";
/// The format of findings.
pub const FORMAT: &str = "ADVERB_CHECK_FORMAT";
/// The file for findings; standard error if there is none.
pub const FILE: &str = "ADVERB_CHECK_FILE";
/// The file in which processes of a run count their findings, for the command.
pub const COUNT: &str = "ADVERB_CHECK_COUNT";

/// What a finding looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingFormat {
    /// Sentences for people.
    Text,
    /// A JSON object for each finding, one a line.
    Json,
}

impl FindingFormat {
    /// The names of all.
    pub const NAMES: [&str; 2] = ["text", "json"];

    /// The format of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The words that the option and the variable take: profiles switch the check on, too.
fn every_word() -> impl Iterator<Item = &'static str> {
    ["on", "off"].into_iter().chain(PROFILES.iter().map(|profile| profile.name))
}

/// Whether the words of a list switch the check on.
///
/// # Errors
/// A text for the user that names the word that is none.
pub fn words(list: &str) -> Result<bool, String> {
    let mut is_on = false;
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word {
            "on" => is_on = true,
            "off" => {}
            _ if every_word().any(|known| known == word) => is_on = true,
            _ => {
                let all: Vec<_> = every_word().collect();
                return Err(format!("there is no {word:?}; wanted is one of {}", all.join(", ")));
            }
        }
    }
    Ok(is_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_switch_the_check_on_or_are_refused() {
        assert_eq!((words("on"), words("off"), words(" on ,")), (Ok(true), Ok(false), Ok(true)));
        assert_eq!((words("siw,strict"), words("on,mlx5")), (Ok(true), Ok(true)));
        assert!(words("yes").is_err_and(|why| why.contains("on, off")));
        assert!(FindingFormat::NAMES.iter().all(|name| FindingFormat::from_name(name).is_some()));
    }
}
