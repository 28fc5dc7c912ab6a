//! Texts of the repository in what is installed, which is not the source tree.

use super::put;
use std::fs;
use std::path::Path;

/// Links to files that are not in the folder become words: what is installed is not the source tree.
pub(super) fn mend(folder: &Path) -> Result<(), String> {
    let path = folder.join("README.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    put(&path, &without_dead_links(&text, |target| folder.join(target).exists()))
}

/// `[text](target)` where `target` is a file that is there, or an address; else `text` and where to look for
/// it. The same of an image, `![text](target)`.
fn without_dead_links(text: &str, is_there: impl Fn(&str) -> bool) -> String {
    let mut mended = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        mended.push_str(before);
        let parts = link[1..].split_once("](").and_then(|(words, tail)| {
            let (target, after) = tail.split_once(')')?;
            (!words.contains(['[', '\n']) && !target.contains('\n')).then_some((words, target, after))
        });
        let Some((words, target, after)) = parts else {
            mended.push('[');
            rest = &link[1..];
            continue;
        };
        if target.contains("://") || is_there(target) {
            mended.push_str(&link[..link.len() - after.len()]);
        } else {
            if mended.ends_with('!') {
                mended.pop();
            }
            mended.push_str(words);
            mended.push_str(" (in the source)");
        }
        rest = after;
    }
    mended + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let text = "a [b](b.md), [c](docs/c.md), [d](https://d) `x[1]` ([e])\n[f](f)\n![g](g.svg)![h](b.md)";
        let mended = without_dead_links(text, |target| target == "b.md");
        assert_eq!(
            mended,
            "a [b](b.md), c (in the source), [d](https://d) `x[1]` ([e])\nf (in the source)\ng (in the source)![h](b.md)"
        );
        assert_eq!(without_dead_links(text, |_| true), text);
    }
}
