//! The objects of the program: which live, which are gone, and where they were made and destroyed.

use super::finding::Kind;
use super::map::Map;
use super::report::Finding;
use super::roles::Thing;
use super::site::Site;
use crate::names;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// An object that lives.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) thing: Thing,
    /// No two objects have the same.
    pub(super) serial: u64,
    /// Of a queue pair, its number; of a completion queue, its handle.
    pub(super) number: u32,
    /// For a sentence: `queue pair 0x12`.
    pub(super) name: String,
    pub(super) made: Site,
    /// The open device that it belongs to.
    pub(super) context: usize,
    /// The objects that it needs.
    pub(super) uses: Vec<usize>,
    /// The identifier for which the manager has made it; 0 if the program has.
    pub(super) manager: usize,
    /// A call is destroying it.
    pub(super) ending: bool,
    /// A destroying call was refused.
    refused: Option<DestroyRefusal>,
    /// The object's leak was told.
    told: bool,
}

/// A destroying call that answered EBUSY.
#[derive(Clone, Debug)]
struct DestroyRefusal {
    call: &'static str,
    site: Site,
    /// The objects that used it then.
    users: Vec<u64>,
    names: String,
}

/// An object that is gone.
#[derive(Clone, Debug)]
struct DestroyedObject {
    object: Object,
    site: Site,
    call: &'static str,
}

/// A call that should have made an object.
#[derive(Clone, Copy, Debug)]
struct FailedCreation {
    call: &'static str,
    errno: i32,
    site: Site,
}

/// The most objects that are remembered when they are gone.
pub(super) const MOST_GONE: usize = 1 << 16;

/// The objects of this process.
#[derive(Default)]
pub(super) struct Objects {
    live: Map<usize, Object>,
    gone: Map<usize, DestroyedObject>,
    order: VecDeque<(usize, u64)>,
    /// Objects of the process that forked this one, as they lived then.
    inherited: Map<usize, Object>,
    failed: HashMap<Thing, FailedCreation>,
    last: u64,
}

/// What is known of a new object.
pub(super) struct New {
    pub(super) thing: Thing,
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) context: usize,
    pub(super) uses: Vec<usize>,
    pub(super) manager: usize,
}

/// The call that an object is an argument of.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) call: &'static str,
    pub(super) destroys: bool,
    pub(super) ends_process: bool,
}

impl Objects {
    pub(super) fn get(&self, pointer: usize) -> Option<&Object> {
        self.live.get(&pointer)
    }

    /// Whether an object lives.
    pub(super) fn is_live(&self, pointer: usize) -> bool {
        self.live.contains_key(&pointer)
    }

    /// Whether an object is gone, or of a parent process.
    pub(super) fn is_gone(&self, pointer: usize) -> bool {
        !self.live.contains_key(&pointer)
            && (self.gone.contains_key(&pointer) || self.inherited.contains_key(&pointer))
    }

    /// The addresses of all objects of a kind.
    pub(super) fn all(&self, thing: Thing) -> impl Iterator<Item = usize> {
        self.live.iter().filter(move |(_, object)| object.thing == thing).map(|(pointer, _)| *pointer)
    }

    /// A call has made an object.
    pub(super) fn make(&mut self, pointer: usize, new: New, site: Site) -> u64 {
        self.last += 1;
        let New { thing, number, name, context, uses, manager } = new;
        self.failed.remove(&thing);
        self.gone.remove(&pointer);
        self.inherited.remove(&pointer);
        let object = Object {
            thing,
            serial: self.last,
            number,
            name,
            made: site,
            context,
            uses: uses.into_iter().filter(|used| *used != 0).collect(),
            manager,
            ending: false,
            refused: None,
            told: false,
        };
        self.live.insert(pointer, object);
        self.last
    }

    /// A call that should have made an object has failed.
    pub(super) fn fail(&mut self, thing: Thing, call: &'static str, errno: i32, site: Site) {
        self.failed.insert(thing, FailedCreation { call, errno, site });
    }

    /// An object is gone.
    pub(super) fn end(&mut self, pointer: usize, call: &'static str, site: Site) {
        if self.inherited.remove(&pointer).is_some() {
            return;
        }
        let Some(object) = self.live.remove(&pointer) else { return };
        self.order.push_back((pointer, object.serial));
        self.gone.insert(pointer, DestroyedObject { object, site, call });
        if self.order.len() > MOST_GONE
            && let Some((oldest, serial)) = self.order.pop_front()
            && self.gone.get(&oldest).is_some_and(|gone| gone.object.serial == serial)
        {
            self.gone.remove(&oldest);
        }
    }

    /// A call is about to destroy an object: its serial, 0 if nobody knows it.
    pub(super) fn begin_end(&mut self, pointer: usize) -> u64 {
        self.live.get_mut(&pointer).map_or(0, |object| {
            object.ending = true;
            object.serial
        })
    }

    /// Whether this address is another object's by now: its memory was given away before the call that
    /// destroyed the object of this serial has ended.
    pub(super) fn is_anothers(&self, pointer: usize, serial: u64) -> bool {
        self.live.get(&pointer).is_some_and(|object| object.serial != serial)
    }

    /// A call that was about to destroy an object has not done so.
    pub(super) fn stay(&mut self, pointer: usize) {
        if let Some(object) = self.live.get_mut(&pointer) {
            object.ending = false;
        }
    }

    /// A destroying call has answered EBUSY.
    pub(super) fn refuse(&mut self, pointer: usize, call: &'static str, site: Site) {
        let users: Vec<_> = self.users(pointer).map(|user| (user.serial, user.name.clone())).collect();
        let names = match users.as_slice() {
            [] => "another object still uses it".to_owned(),
            [(_, name)] => format!("{name} still uses it"),
            [(_, name), (_, other)] => format!("{name} and {other} still use it"),
            [(_, name), rest @ ..] => format!("{name} and {} other objects still use it", rest.len()),
        };
        if let Some(object) = self.live.get_mut(&pointer) {
            let users = users.into_iter().map(|(serial, _)| serial).collect();
            object.refused = Some(DestroyRefusal { call, site, users, names });
        }
    }

    /// The objects that need this one.
    fn users(&self, pointer: usize) -> impl Iterator<Item = &Object> {
        self.live.values().filter(move |object| object.uses.contains(&pointer))
    }

    /// The objects that the manager has made for an identifier.
    pub(super) fn of_manager(&self, identifier: usize) -> Vec<(usize, Thing)> {
        let its = |object: &Object| object.manager == identifier && identifier != 0;
        self.live
            .iter()
            .filter(|(_, object)| its(object))
            .map(|(pointer, object)| (*pointer, object.thing))
            .collect()
    }

    /// This process is a child of fork now.
    pub(super) fn enter_child(&mut self) {
        self.inherited.extend(self.live.drain());
        self.gone.clear();
        self.order.clear();
        self.failed.clear();
    }

    /// What is wrong with an argument of a call.
    pub(super) fn argument(
        &self,
        pointer: usize,
        thing: Thing,
        may_be_null: bool,
        caller: Caller,
    ) -> Option<Finding> {
        let Caller { call, destroys, ends_process } = caller;
        if pointer == 0 {
            let failed = self.failed.get(&thing).filter(|_| !may_be_null)?;
            let text = format!(
                "{} failed with {}, and {call} is given NULL in place of the {}",
                failed.call,
                names::of_errno(failed.errno).unwrap_or("an error"),
                thing.name()
            );
            return Some(Finding::new(Kind::ResultIgnored, 0, text).at("failed at", failed.site));
        }
        if self.live.contains_key(&pointer) {
            return None;
        }
        if let Some(object) = self.inherited.get(&pointer) {
            let is_harmless = ends_process || call == "ibv_close_device";
            let text = format!("{} is of the parent process, and a child of fork uses it", object.name);
            return (!is_harmless)
                .then(|| Finding::of_object(Kind::UsedInChild, object, text).at("made at", object.made));
        }
        let gone = self.gone.get(&pointer).filter(|gone| gone.object.thing == thing)?;
        let name = &gone.object.name;
        let finding = if destroys {
            let text = format!("{name} is destroyed by {call}, but {} has destroyed it already", gone.call);
            Finding::of_object(Kind::ObjectDestroyedTwice, &gone.object, text)
        } else {
            let text = format!("{name} is used by {call}, but {} has destroyed it already", gone.call);
            Finding::of_object(Kind::ObjectUsedAfterDestroy, &gone.object, text)
        };
        Some(finding.at("destroyed at", gone.site).at("made at", gone.object.made))
    }

    /// The objects that are left: all, or those of an open device that is closed. `failed`: the program has
    /// ended with an error, and only those are told that kept others from being destroyed.
    pub(super) fn left(&mut self, context: Option<usize>, failed: bool) -> Vec<Finding> {
        let is_meant = |object: &Object| {
            let is_there = |context| object.context == context && object.thing != Thing::Context;
            !object.told && context.is_none_or(is_there)
        };
        let mut findings = Vec::new();
        let mut blocking = Vec::new();
        for object in self.live.values_mut().filter(|object| is_meant(object)) {
            let Some(refused) = &object.refused else { continue };
            object.told = true;
            blocking.extend_from_slice(&refused.users);
            let text = format!(
                "{} of {} failed with EBUSY and was not repeated: {}",
                refused.call, object.name, refused.names
            );
            let finding = Finding::of_object(Kind::DestroyRefused, object, text)
                .of(refused.call, refused.site)
                .at("made at", object.made);
            findings.push((object.serial, finding));
        }
        // Many that were made in one place are one finding. Another way to the place is another one: a
        // suppression may be about a function on the way.
        let mut groups: BTreeMap<(Thing, Site), Vec<&mut Object>> = BTreeMap::new();
        for object in self.live.values_mut().filter(|object| is_meant(object)) {
            let is_managers =
                object.manager != 0 && !matches!(object.thing, Thing::QueuePair | Thing::SharedQueue);
            if is_managers || (failed && !blocking.contains(&object.serial)) {
                continue;
            }
            groups.entry((object.thing, object.made)).or_default().push(object);
        }
        for ((thing, _), mut group) in groups {
            group.sort_by_key(|object| object.serial);
            group.iter_mut().for_each(|object| object.told = true);
            let Some(first) = group.first() else { continue };
            let subject = match group.len() {
                1 => format!("{} is", first.name),
                count => {
                    format!("{count} objects of the kind {}, the first is {}, are", thing.name(), first.name)
                }
            };
            let end = match context {
                Some(_) => "not destroyed before ibv_close_device closes their device",
                None => "never destroyed: the program ends with it",
            };
            let text = format!("{subject} {end}");
            let finding = Finding::of_object(Kind::ObjectLeaked, first, text).at("made at", first.made);
            findings.push((first.serial, finding));
        }
        findings.sort_by_key(|(serial, _)| *serial);
        findings.into_iter().map(|(_, finding)| finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USE: Caller = Caller { call: "ibv_reg_mr", destroys: false, ends_process: false };
    const END: Caller = Caller { call: "ibv_dealloc_pd", destroys: true, ends_process: false };

    fn new(thing: Thing, name: &str, uses: &[usize]) -> New {
        New { thing, number: 0, name: name.to_owned(), context: 1, uses: uses.to_vec(), manager: 0 }
    }

    fn objects() -> Objects {
        let mut objects = Objects::default();
        objects.make(16, new(Thing::Domain, "the domain", &[]), Site::default());
        objects.make(32, new(Thing::Region, "the region", &[16]), Site::default());
        objects
    }

    fn kinds(findings: &[Finding]) -> Vec<Kind> {
        findings.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn a_use_and_a_second_destruction_of_a_gone_object_are_findings() {
        let mut objects = objects();
        let look = |objects: &Objects, caller| {
            objects.argument(16, Thing::Domain, false, caller).map(|finding| finding.kind)
        };
        assert_eq!(look(&objects, USE), None);
        objects.end(16, "ibv_dealloc_pd", Site::default());
        assert_eq!(look(&objects, USE), Some(Kind::ObjectUsedAfterDestroy));
        assert_eq!(look(&objects, END), Some(Kind::ObjectDestroyedTwice));
        assert!(objects.argument(48, Thing::Domain, false, END).is_none(), "nobody knows it");
        objects.make(16, new(Thing::Domain, "another", &[]), Site::default());
        assert_eq!(look(&objects, USE), None);
    }

    #[test]
    fn null_is_wrong_after_a_failure_alone() {
        let mut objects = objects();
        let look =
            |objects: &Objects| objects.argument(0, Thing::Domain, false, USE).map(|finding| finding.text);
        assert_eq!(look(&objects), None);
        objects.fail(Thing::Domain, "ibv_alloc_pd", libc::ENOMEM, Site::default());
        let text = look(&objects).expect("a finding");
        assert!(text.contains("ibv_alloc_pd failed with ENOMEM") && text.contains("ibv_reg_mr"), "{text}");
        assert!(objects.argument(0, Thing::Domain, true, USE).is_none());
        objects.make(16, new(Thing::Domain, "another", &[]), Site::default());
        assert_eq!(look(&objects), None);
    }

    #[test]
    fn objects_that_are_left_are_told_once_and_with_their_users() {
        let mut objects = objects();
        objects.refuse(16, "ibv_dealloc_pd", Site::default());
        let left = objects.left(None, false);
        assert_eq!(kinds(&left), [Kind::DestroyRefused, Kind::ObjectLeaked]);
        assert!(left[0].text.contains("the region still uses it"), "{}", left[0].text);
        assert!(objects.left(None, false).is_empty());
    }

    #[test]
    fn a_refusal_that_is_repeated_is_none() {
        let mut objects = objects();
        objects.refuse(16, "ibv_dealloc_pd", Site::default());
        objects.end(32, "ibv_dereg_mr", Site::default());
        objects.end(16, "ibv_dealloc_pd", Site::default());
        assert!(objects.left(None, false).is_empty());
    }

    #[test]
    fn after_an_error_only_what_is_in_the_way_is_told() {
        let mut objects = objects();
        objects.make(64, new(Thing::Channel, "the channel", &[]), Site::default());
        assert!(objects.left(None, true).is_empty());
        objects.refuse(16, "ibv_dealloc_pd", Site::default());
        assert_eq!(kinds(&objects.left(None, true)), [Kind::DestroyRefused, Kind::ObjectLeaked]);
    }

    #[test]
    fn memory_that_was_given_away_at_once_is_another_object() {
        let mut objects = objects();
        let serial = objects.begin_end(32);
        assert!(!objects.is_anothers(32, serial));
        objects.make(32, new(Thing::Region, "another", &[16]), Site::default());
        assert!(objects.is_anothers(32, serial));
        assert_eq!(objects.begin_end(48), 0, "nobody knows it");
    }

    #[test]
    fn objects_of_one_place_are_one_finding_and_those_of_other_devices_none() {
        let mut objects = objects();
        for pointer in [64, 80] {
            objects.make(pointer, new(Thing::Region, "more", &[16]), Site::default());
        }
        assert!(objects.left(Some(2), false).is_empty());
        let left = objects.left(Some(1), false);
        assert_eq!(kinds(&left), [Kind::ObjectLeaked, Kind::ObjectLeaked]);
        assert!(left[1].text.starts_with("3 objects of the kind region"), "{}", left[1].text);
    }

    #[test]
    fn objects_of_one_function_that_others_call_are_a_finding_for_each_way() {
        let mut objects = Objects::default();
        for (pointer, caller) in [(16, 7), (32, 8), (48, 7)] {
            objects.make(pointer, new(Thing::Region, "a region", &[]), Site::through(&[5, caller]));
        }
        let left = objects.left(None, false);
        let many: Vec<_> = left.iter().map(|finding| finding.text.starts_with("2 objects")).collect();
        assert_eq!(many, [true, false]);
        assert_eq!(left[1].places, [("made at", Site::through(&[5, 8]))]);
    }

    #[test]
    fn a_child_has_no_objects_of_its_parent() {
        let mut objects = objects();
        objects.enter_child();
        let look = |objects: &Objects, caller| objects.argument(16, Thing::Domain, false, caller);
        assert!(look(&objects, USE).is_some_and(|finding| finding.kind == Kind::UsedInChild));
        assert!(look(&objects, Caller { ends_process: true, ..USE }).is_none());
        assert!(objects.left(None, false).is_empty());
    }

    #[test]
    fn the_oldest_of_many_gone_objects_is_forgotten() {
        let mut objects = Objects::default();
        for pointer in 1..=MOST_GONE + 1 {
            objects.make(pointer, new(Thing::AddressHandle, "", &[]), Site::default());
            objects.end(pointer, "ibv_destroy_ah", Site::default());
        }
        let look = |pointer| objects.argument(pointer, Thing::AddressHandle, false, END).is_some();
        assert_eq!((look(1), look(2)), (false, true));
    }
}
