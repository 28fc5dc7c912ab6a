//! Logarithmic axes with round numbers on them.

use super::element::Element;

/// From values to places on the page.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    first: f64,
    last: f64,
}

impl Axis {
    /// Values from `from` to `to`, both positive, at places from `first` to `last`.
    pub(super) fn new((from, to): (f64, f64), (first, last): (f64, f64)) -> Self {
        Self { from, to: if to > from { to } else { from * 2.0 }, first, last }
    }

    /// Where a value is.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = (value.max(self.from * 1e-3) / self.from).ln() / (self.to / self.from).ln();
        self.first + part * (self.last - self.first)
    }

    /// The powers of ten in between, with 2 and 5 times each where that leaves room.
    pub(super) fn decades(&self) -> Vec<f64> {
        let decades = (self.to / self.from).log10();
        let steps: &[f64] = match decades {
            d if d < 1.2 => &[1.0, 2.0, 5.0],
            d if d < 2.2 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        all.filter(|value| (self.from * 0.999..=self.to * 1.001).contains(value)).collect()
    }

    /// Chooses values that each have so much room on the axis.
    pub(super) fn with_room(&self, values: &[f64], room: f64) -> Vec<f64> {
        let mut taken: Vec<f64> = Vec::new();
        for value in values {
            let far = |last: &f64| (self.place(*value) - self.place(*last)).abs() >= room;
            if taken.last().is_none_or(far) {
                taken.push(*value);
            }
        }
        taken
    }
}

/// The least and the greatest, with a little air around them.
pub(super) fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let good = values.filter(|value| value.is_finite() && *value > 0.0);
    let (least, most) =
        good.fold((f64::MAX, 0f64), |(least, most), value| (least.min(value), most.max(value)));
    if most == 0.0 { (1.0, 10.0) } else { (least / 1.25, most * 1.25) }
}

/// Places for labels that want to be at certain places, in order, and need so much room each.
pub(super) fn spread(wanted: &[f64], room: f64, (first, last): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = wanted.to_vec();
    let mut next = first;
    for index in &order {
        places[*index] = places[*index].max(next);
        next = places[*index] + room;
    }
    // What stands below the end moves up, and pushes others.
    let mut limit = last;
    for index in order.iter().rev() {
        places[*index] = places[*index].min(limit);
        limit = places[*index] - room;
    }
    places
}

/// A text at a place.
pub(super) fn label(x: f64, y: f64, anchor: &str, text: &str) -> Element {
    Element::new("text").at("x", x).at("y", y).with("text-anchor", anchor).text(text)
}

/// A line from one place to another.
pub(super) fn line(x1: f64, y1: f64, x2: f64, y2: f64, class: &str) -> Element {
    Element::new("line").at("x1", x1).at("y1", y1).at("x2", x2).at("y2", y2).with("class", class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_logarithmic() {
        let axis = Axis::new((1.0, 100.0), (0.0, 200.0));
        assert!((axis.place(10.0) - 100.0).abs() < 1e-9);
        assert_eq!(axis.decades(), [1.0, 3.0, 10.0, 30.0, 100.0]);
        assert_eq!(axis.with_room(&[1.0, 1.1, 10.0], 20.0), [1.0, 10.0]);
        assert!(Axis::new((5.0, 5.0), (0.0, 1.0)).place(5.0).is_finite());
    }

    #[test]
    fn labels_do_not_overlap() {
        let places = spread(&[50.0, 51.0, 99.0], 12.0, (0.0, 100.0));
        assert_eq!(places, [50.0, 62.0, 99.0]);
        let places = spread(&[98.0, 99.0], 12.0, (0.0, 100.0));
        assert_eq!(places, [88.0, 100.0]);
    }

    #[test]
    fn ranges() {
        assert_eq!(range([f64::NAN, 0.0].into_iter()), (1.0, 10.0));
        assert_eq!(range([4.0, 8.0].into_iter()), (3.2, 10.0));
    }
}
