//! Which file uses which: from `use` declarations, paths in the code, and paths inside of macros.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemMod, ItemUse, Macro, Path, UseTree, Visibility};

use super::tree::{FileId, ModuleId, Target, Tree, flatten, is_test_only, item_attributes};

/// A use of one file's item, or module, in another file.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) from: FileId,
    pub(crate) to: FileId,
    pub(crate) line: usize,
    /// What is written there.
    pub(crate) path: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The file uses an item that the other file defines.
    Item,
    /// The file only names a module, or passes an item on: no part of a cycle by itself.
    Passing,
}

/// Returns every use of another file's items, without those in tests.
pub(crate) fn edges(tree: &Tree) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (id, file) in tree.files.iter().enumerate() {
        let mut reader = Reader {
            tree,
            file: id,
            module: file.module,
            edges: &mut edges,
        };
        reader.visit_file(&file.syntax);
    }
    edges
}

struct Reader<'a> {
    tree: &'a Tree,
    file: FileId,
    module: ModuleId,
    edges: &'a mut Vec<Edge>,
}

impl Reader<'_> {
    fn add(&mut self, path: &[String], line: usize, is_reexport: bool) {
        for target in self.tree.resolve(self.module, path) {
            let (to, kind) = match target {
                Target::Module(module) => (self.tree.modules[module].file, Kind::Passing),
                Target::Item(file) if is_reexport => (file, Kind::Passing),
                Target::Item(file) => (file, Kind::Item),
            };
            if to != self.file {
                self.edges.push(Edge {
                    from: self.file,
                    to,
                    line,
                    path: path.join("::"),
                    kind,
                });
            }
        }
    }

    /// A path in the code. Names without a qualifier are of this file, or their import is counted
    /// already, unless that passes them on or names no names.
    fn add_written(&mut self, path: &[String], line: usize) {
        if let [name] = path {
            let imports = &self.tree.modules[self.module].imports;
            let is_counted = !imports.iter().any(|import| match &import.name {
                Some(imported) => import.is_reexport && imported == name,
                None => true,
            });
            if is_counted || name == "self" || name == "super" || name == "crate" {
                return;
            }
        }
        self.add(path, line, false);
    }

    /// Paths among the tokens of a macro, which no parser understands.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 && !path.is_empty() {
                        self.add_written(&std::mem::take(&mut path), line);
                    }
                    if path.is_empty() {
                        line = name.span().start().line;
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    if !path.is_empty() {
                        self.add_written(&std::mem::take(&mut path), line);
                    }
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        if !path.is_empty() {
            self.add_written(&path, line);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return,
        };
        if !is_test_only(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() {
            let children = &self.tree.modules[self.module].children;
            let inner = children[&item.ident.to_string()];
            let outer = std::mem::replace(&mut self.module, inner);
            visit::visit_item_mod(self, item);
            self.module = outer;
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        for used in flatten(item.leading_colon.is_some(), &item.tree) {
            self.add(&used.path, used.line, is_reexport);
        }
    }

    // `visit_item_use` has seen the whole of it.
    fn visit_use_tree(&mut self, _: &'ast UseTree) {}

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            let line = first.ident.span().start().line;
            let names = path.segments.iter();
            let names: Vec<_> = names.map(|segment| segment.ident.to_string()).collect();
            self.add_written(&names, line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        if let Some(name) = invoked.path.get_ident()
            && let Some(files) = self.tree.macros.get(&name.to_string())
            && let [file] = files.as_slice()
            && *file != self.file
        {
            self.edges.push(Edge {
                from: self.file,
                to: *file,
                line: name.span().start().line,
                path: format!("{name}!"),
                kind: Kind::Item,
            });
        }
        self.add_tokens(invoked.tokens.clone());
        visit::visit_macro(self, invoked);
    }
}
