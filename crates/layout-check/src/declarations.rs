//! The declarations in the generated sources.

use std::collections::BTreeSet;
use std::path::PathBuf;

use syn::{Fields, Item};

/// A structure or union with fields. A C header may declare it under a tag with a leading `_`, but
/// a record always has the plain name.
pub struct Record {
    /// The name without a leading `_`.
    pub name: String,
    /// The Rust name of each field, and the last segment of its type if the type is a path.
    pub fields: Vec<(String, String)>,
}

/// All declarations in the generated sources.
#[derive(Default)]
pub struct Declarations {
    /// Structures and unions whose layout is known.
    pub records: Vec<Record>,
    /// Structures whose fields the headers do not show.
    pub opaque: Vec<String>,
    /// Names of enumerations and of other types.
    pub types: Vec<String>,
    /// Constants of enumerations, as pairs of type and name.
    pub enumerators: Vec<(String, String)>,
    /// Other constants: flags, and macros whose value is a number.
    pub numbers: Vec<String>,
    /// Macros whose value is a text.
    pub texts: Vec<String>,
    names: BTreeSet<String>,
}

impl Declarations {
    /// Reads the declarations in Rust sources.
    ///
    /// # Panics
    ///
    /// Panics if a source cannot be read, or contains an item that is not a declaration.
    pub fn read(sources: &[PathBuf]) -> Self {
        let mut found = Self::default();
        for path in sources {
            let file = syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap();
            for item in file.items {
                found.add(item);
            }
        }
        found
    }

    /// Returns whether the name of a C header is declared.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns the fields of a structure, in order, with the names of their types.
    ///
    /// # Panics
    ///
    /// Panics if there is no such structure.
    pub fn fields_of(&self, name: &str) -> &[(String, String)] {
        let record = self.records.iter().find(|record| record.name == name);
        &record.unwrap().fields
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Struct(item) => match item.fields {
                // A structure without named fields is an enumeration.
                Fields::Unnamed(_) => {
                    let name = self.name(untagged(&item.ident));
                    self.types.push(name);
                }
                fields => self.record(&item.ident, fields),
            },
            Item::Union(item) => self.record(&item.ident, Fields::Named(item.fields)),
            // An alias of a structure's tag is skipped, because the structure itself is declared.
            Item::Type(item) if last_segment(&item.ty) == format!("_{}", item.ident) => {}
            Item::Type(item) => {
                let name = self.name(untagged(&item.ident));
                self.types.push(name);
            }
            Item::Const(item) => {
                let name = self.name(item.ident.to_string());
                match &*item.ty {
                    syn::Type::Reference(_) => self.texts.push(name),
                    _ => self.numbers.push(name),
                }
            }
            Item::Impl(item) => {
                let owner = last_segment(&item.self_ty);
                let owner = owner.trim_start_matches('_').to_owned();
                for item in item.items {
                    let syn::ImplItem::Const(item) = item else {
                        panic!("{owner} has an item that is not a constant");
                    };
                    let name = self.name(item.ident.to_string());
                    self.enumerators.push((owner.clone(), name));
                }
            }
            Item::Use(_) => {}
            _ => panic!("an item of a kind that no test compares"),
        }
    }

    fn record(&mut self, ident: &syn::Ident, fields: Fields) {
        let fields: Vec<_> = fields
            .iter()
            .map(|field| {
                let name = field.ident.as_ref().unwrap().to_string();
                (name, last_segment(&field.ty))
            })
            .collect();
        match fields.as_slice() {
            // An opaque structure under its tag. The name without the leading `_` is that of a
            // pointer to it.
            [(only, _)] if only == "_unused" => {
                let name = self.name(ident.to_string());
                self.opaque.push(name);
            }
            _ => {
                let name = self.name(untagged(ident));
                self.records.push(Record { name, fields });
            }
        }
    }

    fn name(&mut self, name: String) -> String {
        assert!(self.names.insert(name.clone()), "{name} is declared twice");
        name
    }
}

fn untagged(ident: &syn::Ident) -> String {
    ident.to_string().trim_start_matches('_').to_owned()
}

fn last_segment(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().unwrap().ident.to_string(),
        _ => String::new(),
    }
}
