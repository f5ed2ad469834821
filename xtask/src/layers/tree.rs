//! The modules of the library, their items and their imports, read from its sources.

use std::collections::{BTreeMap, HashMap, HashSet};

use syn::spanned::Spanned;
use syn::{Attribute, Item, Meta, Token, UseTree, Visibility, punctuated::Punctuated};

use crate::Result;

/// Sources by their path below the crate's `src`.
pub(crate) type Sources = BTreeMap<String, String>;

/// The index of a file in [`Tree::files`].
pub(crate) type FileId = usize;
/// The index of a module in [`Tree::modules`].
pub(crate) type ModuleId = usize;

/// A file that is compiled outside of tests.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) syntax: syn::File,
    pub(crate) module: ModuleId,
}

/// A module, in a file of its own or within one.
pub(crate) struct Module {
    pub(crate) file: FileId,
    pub(crate) parent: Option<ModuleId>,
    /// Modules directly within this one, by name.
    pub(crate) children: HashMap<String, ModuleId>,
    /// Names of what is defined here: types, functions, constants.
    items: HashSet<String>,
    pub(crate) imports: Vec<Import>,
}

/// One name that a `use` declaration at the level of a module brings in.
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name it has here; `None` for a glob.
    pub(crate) name: Option<String>,
    /// Others may import it from here.
    pub(crate) is_reexport: bool,
}

/// The meaning of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Target {
    Module(ModuleId),
    /// An item that this file defines.
    Item(FileId),
}

/// The library's modules.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
    pub(crate) modules: Vec<Module>,
    /// Files that define a `macro_rules!` of a name.
    pub(crate) macros: HashMap<String, Vec<FileId>>,
}

impl Tree {
    /// Reads all modules from `lib.rs` on, without those that only tests have.
    ///
    /// # Errors
    /// A source that does not parse, or a module without a file.
    pub(crate) fn read(sources: &Sources) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_file(sources, "lib.rs", "", None)?;
        Ok(tree)
    }

    /// Reads the file at `path`, whose modules are in `directory` (empty, or ending with `/`).
    fn read_file(
        &mut self,
        sources: &Sources,
        path: &str,
        directory: &str,
        parent: Option<ModuleId>,
    ) -> Result<ModuleId> {
        let text = &sources[path];
        let syntax = syn::parse_file(text).map_err(|error| {
            let line = error.span().start().line;
            format!("{path}:{line}: {error}")
        })?;
        let file = self.files.len();
        let module = self.new_module(file, parent);
        // Takes the file's number before its modules take theirs.
        self.files.push(File {
            path: path.to_owned(),
            syntax: syn::File {
                shebang: None,
                frontmatter: None,
                attrs: Vec::new(),
                items: Vec::new(),
            },
            module,
        });
        self.read_items(sources, &syntax.items, directory, module)?;
        self.files[file].syntax = syntax;
        Ok(module)
    }

    fn new_module(&mut self, file: FileId, parent: Option<ModuleId>) -> ModuleId {
        self.modules.push(Module {
            file,
            parent,
            children: HashMap::new(),
            items: HashSet::new(),
            imports: Vec::new(),
        });
        self.modules.len() - 1
    }

    fn read_items(
        &mut self,
        sources: &Sources,
        items: &[Item],
        directory: &str,
        module: ModuleId,
    ) -> Result<()> {
        for item in items {
            if is_test_only(item_attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let below = format!("{directory}{name}/");
                    let id = match &child.content {
                        Some((_, items)) => {
                            let id = self.new_module(self.modules[module].file, Some(module));
                            self.read_items(sources, items, &below, id)?;
                            id
                        }
                        None => {
                            let beside = format!("{directory}{name}.rs");
                            let within = format!("{below}mod.rs");
                            let path = [beside, within]
                                .into_iter()
                                .find(|path| sources.contains_key(path))
                                .ok_or_else(|| format!("the module {below} has no file"))?;
                            self.read_file(sources, &path, &below, Some(module))?
                        }
                    };
                    self.modules[module].children.insert(name, id);
                }
                Item::Use(item) => {
                    let is_reexport = !matches!(item.vis, Visibility::Inherited);
                    for used in flatten(item.leading_colon.is_some(), &item.tree) {
                        self.modules[module].imports.push(Import {
                            path: used.path,
                            name: used.name,
                            is_reexport,
                        });
                    }
                }
                Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        let file = self.modules[module].file;
                        let name = name.to_string();
                        self.macros.entry(name.clone()).or_default().push(file);
                        self.modules[module].items.insert(name);
                    }
                }
                Item::ForeignMod(block) => {
                    for item in &block.items {
                        let name = match item {
                            syn::ForeignItem::Fn(item) => item.sig.ident.to_string(),
                            syn::ForeignItem::Static(item) => item.ident.to_string(),
                            _ => continue,
                        };
                        self.modules[module].items.insert(name);
                    }
                }
                other => {
                    if let Some(name) = item_name(other) {
                        self.modules[module].items.insert(name);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns what `path` names in `module`: nothing for names of other crates and of local
    /// variables.
    pub(crate) fn resolve(&self, module: ModuleId, path: &[String]) -> Vec<Target> {
        self.resolve_unseen(module, path, &mut HashSet::new())
    }

    fn resolve_unseen(
        &self,
        module: ModuleId,
        path: &[String],
        seen: &mut HashSet<(ModuleId, String)>,
    ) -> Vec<Target> {
        let mut here = module;
        let mut is_explicit = false;
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            here = match first.as_str() {
                "crate" => 0,
                "self" => here,
                "super" => match self.modules[here].parent {
                    Some(parent) => parent,
                    None => return Vec::new(),
                },
                _ => break,
            };
            is_explicit = true;
            rest = after;
        }
        let Some((first, after)) = rest.split_first() else {
            return vec![Target::Module(here)];
        };
        let mut found = self.lookup(here, first, seen);
        if found.is_empty() && is_explicit {
            // A macro defines it.
            found.push(Target::Item(self.modules[here].file));
        }
        for name in after {
            // A function may have the name of a module: a path goes through the module.
            if found
                .iter()
                .any(|target| matches!(target, Target::Module(_)))
            {
                found.retain(|target| matches!(target, Target::Module(_)));
            }
            let mut next = Vec::new();
            for target in found {
                match target {
                    Target::Item(_) => next.push(target),
                    Target::Module(inside) => {
                        let inner = self.lookup(inside, name, seen);
                        if inner.is_empty() {
                            next.push(Target::Item(self.modules[inside].file));
                        }
                        next.extend(inner);
                    }
                }
            }
            found = next;
        }
        found.sort_by_key(|target| match target {
            Target::Module(id) => (0, *id),
            Target::Item(id) => (1, *id),
        });
        found.dedup();
        found
    }

    /// Returns what `name` is in `module`, by its own items and its imports.
    fn lookup(
        &self,
        module: ModuleId,
        name: &str,
        seen: &mut HashSet<(ModuleId, String)>,
    ) -> Vec<Target> {
        if !seen.insert((module, name.to_owned())) {
            return Vec::new();
        }
        let here = &self.modules[module];
        let mut found = Vec::new();
        if let Some(child) = here.children.get(name) {
            found.push(Target::Module(*child));
        }
        if here.items.contains(name) {
            found.push(Target::Item(here.file));
        }
        for import in &here.imports {
            if import.name.as_deref() == Some(name) {
                found.extend(self.resolve_unseen(module, &import.path, seen));
            }
        }
        if found.is_empty() {
            for import in here.imports.iter().filter(|import| import.name.is_none()) {
                for target in self.resolve_unseen(module, &import.path, seen) {
                    if let Target::Module(inside) = target {
                        found.extend(self.lookup(inside, name, seen));
                    }
                }
            }
        }
        seen.remove(&(module, name.to_owned()));
        found
    }

    /// Returns the file of the module that contains the module of `file`.
    pub(crate) fn parent_file(&self, file: FileId) -> Option<FileId> {
        let parent = self.modules[self.files[file].module].parent?;
        Some(self.modules[parent].file)
    }
}

/// A name of a `use` declaration.
pub(crate) struct Used {
    pub(crate) path: Vec<String>,
    pub(crate) name: Option<String>,
    pub(crate) line: usize,
}

/// Returns every name of a `use` declaration, with its whole path. A path with a leading `::` is of
/// another crate.
pub(crate) fn flatten(is_external: bool, tree: &UseTree) -> Vec<Used> {
    let mut used = Vec::new();
    if !is_external {
        flatten_below(&mut Vec::new(), tree, &mut used);
    }
    used
}

fn flatten_below(prefix: &mut Vec<String>, tree: &UseTree, used: &mut Vec<Used>) {
    let line = tree.span().start().line;
    let mut add = |prefix: &[String], last: &syn::Ident, name: &syn::Ident| {
        let mut path = prefix.to_vec();
        let mut name = name.to_string();
        if last != "self" {
            path.push(last.to_string());
        } else if name == "self" {
            name = prefix.last().cloned().unwrap_or_default();
        }
        used.push(Used {
            path,
            name: Some(name),
            line,
        });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten_below(prefix, &path.tree, used);
            prefix.pop();
        }
        UseTree::Name(name) => add(prefix, &name.ident, &name.ident),
        UseTree::Rename(rename) => add(prefix, &rename.ident, &rename.rename),
        UseTree::Glob(_) => used.push(Used {
            path: prefix.clone(),
            name: None,
            line,
        }),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten_below(prefix, tree, used);
            }
        }
    }
}

/// Returns whether an item exists in tests alone.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<Meta>()
                    .is_ok_and(|meta| implies_test(&meta))
    })
}

fn implies_test(meta: &Meta) -> bool {
    match meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(implies_test)),
        _ => false,
    }
}

pub(crate) fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn item_name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::TraitAlias(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}
