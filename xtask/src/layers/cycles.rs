//! Files that import each other in a circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::imports::{Edge, Kind};
use super::tree::{FileId, Tree};

/// Files of which each one imports all others, directly or through them.
pub(crate) struct Component {
    pub(crate) files: BTreeSet<FileId>,
    /// A short circle among them, an edge for each step.
    pub(crate) circle: Vec<Edge>,
}

/// Imports between files: for each pair one edge.
type Graph<'a> = BTreeMap<FileId, BTreeMap<FileId, &'a Edge>>;

/// Returns components larger than a module's file with its direct children, largest first.
pub(crate) fn find(tree: &Tree, edges: &[Edge]) -> Vec<Component> {
    let mut graph = Graph::new();
    for edge in edges.iter().filter(|edge| edge.kind == Kind::Item) {
        let targets = graph.entry(edge.from).or_default();
        targets.entry(edge.to).or_insert(edge);
    }
    let mut components: Vec<_> = strongly_connected(&graph, tree.files.len())
        .into_iter()
        .filter(|files| files.len() > 1 && !is_one_module(tree, files))
        .map(|files| Component {
            circle: circle(tree, &graph, &files),
            files,
        })
        .collect();
    components.sort_by_key(|component| std::cmp::Reverse(component.files.len()));
    components
}

/// Returns whether the files are a module's file and files of its direct children, or children
/// alone.
fn is_one_module(tree: &Tree, files: &BTreeSet<FileId>) -> bool {
    let mut parents = files.iter().filter_map(|file| tree.parent_file(*file));
    let candidates: BTreeSet<_> = files.iter().copied().chain(parents.by_ref()).collect();
    candidates.into_iter().any(|module| {
        files
            .iter()
            .all(|file| *file == module || tree.parent_file(*file) == Some(module))
    })
}

/// Returns the shortest circle among `files` that is no module with its direct children, or the
/// shortest.
fn circle(tree: &Tree, graph: &Graph, files: &BTreeSet<FileId>) -> Vec<Edge> {
    let mut best: Option<(bool, Vec<Edge>)> = None;
    for from in files {
        for (to, first) in graph.get(from).into_iter().flatten() {
            if !files.contains(to) {
                continue;
            }
            let Some(mut path) = shortest(graph, files, *to, *from) else {
                continue;
            };
            path.insert(0, (*first).clone());
            let members = path.iter().map(|edge| edge.from).collect();
            let is_allowed = is_one_module(tree, &members);
            let is_better = best
                .as_ref()
                .is_none_or(|(allowed, best)| (is_allowed, path.len()) < (*allowed, best.len()));
            if is_better {
                best = Some((is_allowed, path));
            }
        }
    }
    best.map(|(_, path)| path).unwrap_or_default()
}

/// Returns the shortest way from `start` to `end` within `files`.
fn shortest(
    graph: &Graph,
    files: &BTreeSet<FileId>,
    start: FileId,
    end: FileId,
) -> Option<Vec<Edge>> {
    let mut came_by: BTreeMap<FileId, &Edge> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        if file == end {
            let mut path = Vec::new();
            let mut at = end;
            while at != start {
                let edge = came_by[&at];
                path.push(edge.clone());
                at = edge.from;
            }
            path.reverse();
            return Some(path);
        }
        for (to, edge) in graph.get(&file).into_iter().flatten() {
            if files.contains(to) && *to != start && !came_by.contains_key(to) {
                came_by.insert(*to, edge);
                queue.push_back(*to);
            }
        }
    }
    None
}

/// Returns the strongly connected components, by Tarjan's algorithm.
fn strongly_connected(graph: &Graph, count: usize) -> Vec<BTreeSet<FileId>> {
    struct Search<'a, 'b> {
        graph: &'a Graph<'b>,
        next: usize,
        index: Vec<Option<usize>>,
        low: Vec<usize>,
        stack: Vec<FileId>,
        is_on_stack: Vec<bool>,
        found: Vec<BTreeSet<FileId>>,
    }
    impl Search<'_, '_> {
        fn visit(&mut self, file: FileId) {
            self.index[file] = Some(self.next);
            self.low[file] = self.next;
            self.next += 1;
            self.stack.push(file);
            self.is_on_stack[file] = true;
            for to in self
                .graph
                .get(&file)
                .into_iter()
                .flatten()
                .map(|(to, _)| *to)
            {
                match self.index[to] {
                    None => {
                        self.visit(to);
                        self.low[file] = self.low[file].min(self.low[to]);
                    }
                    Some(index) if self.is_on_stack[to] => {
                        self.low[file] = self.low[file].min(index);
                    }
                    Some(_) => {}
                }
            }
            if self.index[file] == Some(self.low[file]) {
                let mut files = BTreeSet::new();
                while let Some(member) = self.stack.pop() {
                    self.is_on_stack[member] = false;
                    files.insert(member);
                    if member == file {
                        break;
                    }
                }
                self.found.push(files);
            }
        }
    }
    let mut search = Search {
        graph,
        next: 0,
        index: vec![None; count],
        low: vec![0; count],
        stack: Vec::new(),
        is_on_stack: vec![false; count],
        found: Vec::new(),
    };
    for file in 0..count {
        if search.index[file].is_none() {
            search.visit(file);
        }
    }
    search.found
}
