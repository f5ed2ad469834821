//! What the generated sources declare.

use std::collections::BTreeSet;
use std::path::PathBuf;

use syn::{Fields, Item};

/// A structure or union with fields. Where a C header gives it a tag that is its name after a
/// `_`, it goes by its name here.
pub struct Record {
    /// Its name.
    pub name: String,
    /// Each field, by its Rust name, and the last segment of its type where that is a path.
    pub fields: Vec<(String, String)>,
}

/// Everything that the generated sources declare.
#[derive(Default)]
pub struct Declarations {
    /// Structures and unions whose layout is known.
    pub records: Vec<Record>,
    /// Structures that have no fields to be seen.
    pub opaque: Vec<String>,
    /// Names of enumerations and other types.
    pub types: Vec<String>,
    /// Constants of enumerations: the type and the name.
    pub enumerators: Vec<(String, String)>,
    /// Constants that stand alone: flags, and macros with a number.
    pub numbers: Vec<String>,
    /// Macros with a text.
    pub texts: Vec<String>,
    names: BTreeSet<String>,
}

impl Declarations {
    /// Reads Rust sources.
    ///
    /// # Panics
    ///
    /// Where one of them cannot be read, or holds what is no declaration.
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

    /// Whether `name` of a C header is a name here.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The fields of a structure, in order, with the names of their types.
    ///
    /// # Panics
    ///
    /// Where there is no such structure.
    pub fn fields_of(&self, name: &str) -> &[(String, String)] {
        let record = self.records.iter().find(|record| record.name == name);
        &record.unwrap().fields
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Struct(item) => match item.fields {
                // An enumeration.
                Fields::Unnamed(_) => {
                    let name = self.name(untagged(&item.ident));
                    self.types.push(name);
                }
                fields => self.record(&item.ident, fields),
            },
            Item::Union(item) => self.record(&item.ident, Fields::Named(item.fields)),
            // The name beside a tag says nothing more.
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
                        panic!("{owner} has something that is no constant");
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
            // Its tag alone: the name is that of a pointer to it.
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
