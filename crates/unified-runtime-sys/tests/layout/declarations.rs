//! What the generated sources declare.

use std::collections::BTreeSet;
use std::path::Path;

use syn::{Fields, Item};

/// A structure or union with fields.
pub(crate) struct Record {
    pub(crate) name: String,
    /// Each field, by its Rust name, and the last segment of its type where that is a path.
    pub(crate) fields: Vec<(String, String)>,
}

/// Everything that the generated sources declare.
#[derive(Default)]
pub(crate) struct Declarations {
    pub(crate) records: Vec<Record>,
    /// Structures that have no fields to be seen.
    pub(crate) opaque: Vec<String>,
    /// Names of enumerations and other types.
    pub(crate) types: Vec<String>,
    /// Constants of enumerations: the type and the name.
    pub(crate) enumerators: Vec<(String, String)>,
    /// Constants that stand alone: flags, and macros with a number.
    pub(crate) numbers: Vec<String>,
    /// Macros with a text.
    pub(crate) texts: Vec<String>,
    names: BTreeSet<String>,
}

impl Declarations {
    pub(crate) fn read() -> Self {
        let mut found = Self::default();
        for name in ["api.rs", "ddi.rs", "params.rs"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
            let file = syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap();
            for item in file.items {
                found.add(item);
            }
        }
        found
    }

    /// Whether `name` of a C header is a name here.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The fields of a structure, in order, with the names of their types.
    pub(crate) fn fields_of(&self, name: &str) -> &[(String, String)] {
        let record = self.records.iter().find(|record| record.name == name);
        &record.unwrap().fields
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Struct(item) => {
                let name = self.name(&item.ident);
                match item.fields {
                    // An enumeration.
                    Fields::Unnamed(_) => self.types.push(name),
                    fields => self.record(name, fields),
                }
            }
            Item::Union(item) => {
                let name = self.name(&item.ident);
                self.record(name, Fields::Named(item.fields));
            }
            Item::Type(item) => {
                let name = self.name(&item.ident);
                self.types.push(name);
            }
            Item::Const(item) => {
                let name = self.name(&item.ident);
                match &*item.ty {
                    syn::Type::Reference(_) => self.texts.push(name),
                    _ => self.numbers.push(name),
                }
            }
            Item::Impl(item) => {
                let owner = last_segment(&item.self_ty);
                for item in item.items {
                    let syn::ImplItem::Const(item) = item else {
                        panic!("{owner} has something that is no constant");
                    };
                    let name = self.name(&item.ident);
                    self.enumerators.push((owner.clone(), name));
                }
            }
            Item::Use(_) => {}
            _ => panic!("an item of a kind that no test compares"),
        }
    }

    fn record(&mut self, name: String, fields: Fields) {
        let fields: Vec<_> = fields
            .iter()
            .map(|field| {
                let name = field.ident.as_ref().unwrap().to_string();
                (name, last_segment(&field.ty))
            })
            .collect();
        match fields.as_slice() {
            [(only, _)] if only == "_unused" => self.opaque.push(name),
            _ => self.records.push(Record { name, fields }),
        }
    }

    fn name(&mut self, ident: &syn::Ident) -> String {
        let name = ident.to_string();
        assert!(self.names.insert(name.clone()), "{name} is declared twice");
        name
    }
}

fn last_segment(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().unwrap().ident.to_string(),
        _ => String::new(),
    }
}
