//! The table of layers, from top to bottom.

use super::Room;
use std::collections::BTreeSet;

const BEGIN: &str = "<!-- layers -->";
const END: &str = "<!-- /layers -->";

/// One row.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) rooms: Vec<Room>,
}

/// All rows of the table in ARCHITECTURE.md.
pub(super) struct Table {
    /// From top to bottom.
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// Reads it out of the document. A line of the table has the name of the layer in its first cell, and its
    /// rooms in backticks in the second.
    pub(super) fn parse(document: &str) -> Result<Self, String> {
        let inner = document.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
        let (inner, _) = inner.ok_or(format!("there is no table between {BEGIN} and {END}"))?;
        let mut rows = Vec::new();
        for line in inner.lines() {
            if let Some(cells) = line.strip_prefix('|') {
                let mut cells = cells.split('|');
                let (Some(name), Some(inside)) = (cells.next(), cells.next()) else { continue };
                let rooms = rooms(inside);
                if !rooms.is_empty() {
                    rows.push(Row { name: name.trim().to_owned(), rooms });
                }
            }
        }
        let table = Self { rows };
        let mut seen = BTreeSet::new();
        match table.rows.iter().flat_map(|row| &row.rooms).find(|room| !seen.insert(*room)) {
            Some(twice) => Err(format!("{twice} stands in the table of layers twice")),
            None => Ok(table),
        }
    }

    /// The room of the table that something belongs to, and the number of its row.
    pub(super) fn find(&self, wanted: &Room) -> Option<(&Room, usize)> {
        let is_split = self.is_split(&wanted.part);
        let mut places =
            self.rows.iter().enumerate().flat_map(|(at, row)| row.rooms.iter().map(move |room| (room, at)));
        places.find(|(room, _)| room.part == wanted.part && (!is_split || room.module == wanted.module))
    }

    /// Whether this is the front (`lib.rs`) of a crate of which the table names modules: it only lists these.
    pub(super) fn only_lists(&self, room: &Room) -> bool {
        room.module.is_none() && self.is_split(&room.part)
    }

    /// Whether the table names modules of a crate.
    fn is_split(&self, part: &str) -> bool {
        self.rows.iter().flat_map(|row| &row.rooms).any(|room| room.part == part && room.module.is_some())
    }
}

/// Names in backticks: `wire`, `core::qp`, or several modules at once, `core::{cq, qp}`.
fn rooms(text: &str) -> Vec<Room> {
    let room =
        |part: &str, module: Option<&str>| Room { part: part.to_owned(), module: module.map(str::to_owned) };
    let rooms = text.split('`').skip(1).step_by(2).flat_map(|name| match name.split_once("::") {
        Some((part, modules)) => {
            let modules = modules.trim_matches(['{', '}']).split(',');
            modules.map(|module| room(part, Some(module.trim()))).collect()
        }
        None => vec![room(name, None)],
    });
    rooms.collect()
}
