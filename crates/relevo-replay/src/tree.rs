//! A tree of sums over the items of a buffer, by which one of them is drawn with a chance in proportion to its weight.
//!
//! Eight children a node: a cache line. A batch goes down level by level, all draws at a time, so that the processor waits for
//! many cache lines at once; going down one by one is thirty times slower at a million items. A node is always the sum of its
//! children as they are, added in one order, so that nothing drifts however many updates there are.

/// Children of a node.
const FAN: usize = 8;

/// How the value of a node comes from those of its children.
pub(crate) trait Fold {
    /// Of all eight.
    fn fold(children: &[f64; FAN]) -> f64;
}

/// Nodes are sums.
#[derive(Debug)]
pub(crate) struct Sum;

impl Fold for Sum {
    fn fold(c: &[f64; FAN]) -> f64 {
        ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]))
    }
}

/// Nodes are maxima.
#[derive(Debug)]
pub(crate) struct Max;

impl Fold for Max {
    fn fold(children: &[f64; FAN]) -> f64 {
        children.iter().copied().fold(0.0, f64::max)
    }
}

/// Nodes are the least that is over 0, or 0 where none is.
#[derive(Debug)]
pub(crate) struct Least;

impl Fold for Least {
    fn fold(children: &[f64; FAN]) -> f64 {
        let least =
            children.iter().fold(f64::INFINITY, |least, child| if *child > 0.0 { least.min(*child) } else { least });
        if least.is_finite() { least } else { 0.0 }
    }
}

/// A tree over numbers that are 0 or more; all are 0 at first.
#[derive(Debug)]
pub(crate) struct Tree<F> {
    /// The leaves, then the nodes over each eight of them, and so on up to one node; each level a multiple of eight long.
    levels: Vec<Vec<f64>>,
    len: usize,
    fold: std::marker::PhantomData<F>,
}

impl<F: Fold> Tree<F> {
    /// A tree over `len` numbers, 1 or more.
    pub(crate) fn new(len: usize) -> Self {
        let mut levels = Vec::new();
        let mut size = len;
        loop {
            levels.push(vec![0.0; size.next_multiple_of(FAN)]);
            if size <= 1 {
                break;
            }
            size = size.div_ceil(FAN);
        }
        Self { levels, len, fold: std::marker::PhantomData }
    }

    /// The value of the root.
    pub(crate) fn root(&self) -> f64 {
        self.levels.last().map_or(0.0, |level| level[0])
    }

    /// The number in a leaf.
    pub(crate) fn get(&self, leaf: usize) -> f64 {
        self.levels[0][leaf]
    }

    /// All leaves.
    pub(crate) fn leaves(&self) -> &[f64] {
        &self.levels[0][..self.len]
    }

    /// Changes leaves; the nodes over them are as before until [`settle`](Self::settle).
    pub(crate) fn set(&mut self, leaf: usize, value: f64) {
        self.levels[0][leaf] = value;
    }

    /// Makes the nodes over these leaves anew, from their children.
    pub(crate) fn settle(&mut self, leaves: &[usize]) {
        let mut divisor = FAN;
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            let (children, nodes) = (below[level - 1].as_chunks::<FAN>().0, &mut above[0]);
            if children.len() <= leaves.len() {
                nodes.iter_mut().zip(children).for_each(|(node, children)| *node = F::fold(children));
            } else {
                for leaf in leaves {
                    let node = leaf / divisor;
                    nodes[node] = F::fold(&children[node]);
                }
            }
            divisor = divisor.saturating_mul(FAN);
        }
    }

    /// Makes all nodes anew.
    pub(crate) fn settle_all(&mut self) {
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            let children = below[level - 1].as_chunks::<FAN>().0;
            above[0].iter_mut().zip(children).for_each(|(node, children)| *node = F::fold(children));
        }
    }
}

impl Tree<Sum> {
    /// For each of the masses, between 0 and the root, the leaf that it falls on: no leaf of 0 is ever found, at a mass that
    /// equals the root either. There must be a leaf over 0.
    pub(crate) fn find(&self, masses: &mut [f64], found: &mut Vec<usize>) {
        found.clear();
        found.resize(masses.len(), 0);
        for level in self.levels[..self.levels.len() - 1].iter().rev() {
            let groups = level.as_chunks::<FAN>().0;
            for (node, mass) in found.iter_mut().zip(masses.iter_mut()) {
                let child = descend(&groups[*node], mass);
                *node = *node * FAN + child;
            }
        }
    }
}

/// The child that `mass` falls on, of which what lies before that child is taken away.
fn descend(children: &[f64; FAN], mass: &mut f64) -> usize {
    let mut before = [0.0; FAN];
    let mut sum = 0.0;
    let mut child = 0;
    for (at, value) in children.iter().enumerate() {
        before[at] = sum;
        sum += value;
        // Those that the mass lies behind; where one is 0, its end is where the mass lies behind, too.
        child += usize::from(*mass >= sum);
    }
    if child == FAN || children[child] == 0.0 {
        // Rounding, or a mass that equals the whole.
        child = children.iter().rposition(|value| *value > 0.0).unwrap_or(0);
    }
    *mass -= before[child];
    child
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The leaf that a mass falls on, by adding up.
    fn by_hand(weights: &[f64], mass: f64) -> usize {
        let mut sum = 0.0;
        for (leaf, weight) in weights.iter().enumerate() {
            sum += weight;
            if mass < sum {
                return leaf;
            }
        }
        weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0)
    }

    fn tree<F: Fold>(weights: &[f64]) -> Tree<F> {
        let mut tree = Tree::new(weights.len());
        weights.iter().enumerate().for_each(|(leaf, weight)| tree.set(leaf, *weight));
        tree.settle_all();
        tree
    }

    proptest! {
        #[test]
        fn masses_fall_where_they_should(weights in proptest::collection::vec(0..4_u32, 1..700)) {
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let tree: Tree<Sum> = tree(&weights);
            let total: f64 = weights.iter().sum();
            prop_assert_eq!(tree.root().to_bits(), total.to_bits());
            prop_assume!(total > 0.0);
            // Whole numbers are added without rounding, so that each boundary can be tried.
            let masses: Vec<f64> = (0..=2 * total as usize).map(|half| half as f64 / 2.0).collect();
            let mut found = Vec::new();
            tree.find(&mut masses.clone(), &mut found);
            for (mass, leaf) in masses.iter().zip(found) {
                prop_assert_eq!(leaf, by_hand(&weights, *mass), "mass {}", mass);
            }
        }

        #[test]
        fn updates_leave_what_building_anew_gives(
            len in 1..600_usize,
            updates in proptest::collection::vec((any::<proptest::sample::Index>(), 0.0..1e9_f64), 1..300),
            batch in 1..40_usize,
        ) {
            let (mut sums, mut maxima) = (Tree::<Sum>::new(len), Tree::<Max>::new(len));
            let mut weights = vec![0.0; len];
            for some in updates.chunks(batch) {
                let leaves: Vec<usize> = some.iter().map(|(at, _)| at.index(len)).collect();
                for (leaf, (_, weight)) in leaves.iter().zip(some) {
                    weights[*leaf] = *weight;
                    sums.set(*leaf, *weight);
                    maxima.set(*leaf, *weight);
                }
                sums.settle(&leaves);
                maxima.settle(&leaves);
                prop_assert_eq!(&sums.levels, &tree::<Sum>(&weights).levels);
                prop_assert_eq!(&maxima.levels, &tree::<Max>(&weights).levels);
                let least = weights.iter().copied().filter(|weight| *weight > 0.0).reduce(f64::min).unwrap_or(0.0);
                prop_assert_eq!(tree::<Least>(&weights).root().to_bits(), least.to_bits());
            }
        }
    }

    #[test]
    fn ten_million_updates_do_not_drift() {
        let mut tree = Tree::<Sum>::new(1000);
        let mut state = 7_u64;
        for turn in 0..100_000_usize {
            let leaves: Vec<usize> = (0..100).map(|at| (turn * 37 + at * 11) % 1000).collect();
            for leaf in &leaves {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                tree.set(*leaf, (state >> 40) as f64 * 1e-3);
            }
            tree.settle(&leaves);
        }
        let total: f64 = tree.leaves().iter().sum();
        assert!((tree.root() - total).abs() <= 1e-12 * total);
    }

    #[test]
    fn a_mass_beyond_the_whole_finds_the_last_that_can_be_drawn() {
        let tree: Tree<Sum> = tree(&[0.0, 0.3, 0.1, 0.0]);
        let mut found = Vec::new();
        tree.find(&mut [0.0, tree.root(), 1e9], &mut found);
        assert_eq!(found, [1, 2, 2]);
    }
}
