//! What a file may contain, by its place: `unsafe`, names of bindings, threads, constants of time.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    ExprUnsafe, Ident, ImplItem, ImplItemConst, ImplItemFn, Item, ItemConst, ItemFn, ItemImpl,
    ItemStatic, ItemTrait, Macro, Path, Signature, Type, VisRestricted,
};

use super::table::{BINDINGS, MAY_BE_UNSAFE};
use super::tree::{flatten, is_test_only, item_attributes};

/// The rules that a file is checked against.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// The file's path below its crate's `src`.
    pub(crate) path: &'a str,
    /// It is one of the library's, which has places for `unsafe` and for bindings.
    pub(crate) is_library: bool,
    /// It runs inside of a user's process: its threads and times have their places.
    pub(crate) is_in_users_process: bool,
}

/// A line of a file, and what is wrong there.
pub(crate) type Found = (usize, String);

impl Rules<'_> {
    /// Returns every fault of a file, without those in tests.
    pub(crate) fn check(self, file: &syn::File) -> Vec<Found> {
        let mut checker = Checker {
            rules: self,
            is_promised: false,
            found: Vec::new(),
        };
        checker.visit_file(file);
        let mut found = checker.found;
        found.sort();
        found.dedup();
        found
    }

    fn may_be_unsafe(&self) -> bool {
        !self.is_library
            || MAY_BE_UNSAFE
                .iter()
                .any(|place| self.path.starts_with(place))
    }

    fn may_start_threads(&self) -> bool {
        !self.is_in_users_process || (self.is_library && self.path.starts_with("threads/"))
    }

    fn may_have_times(&self) -> bool {
        !self.is_in_users_process || self.path.ends_with("tuning.rs")
    }
}

struct Checker<'a> {
    rules: Rules<'a>,
    /// Within a function whose caller makes a promise: it may pass that on.
    is_promised: bool,
    found: Vec<Found>,
}

impl Checker<'_> {
    fn fault(&mut self, span: proc_macro2::Span, what: impl Into<String>) {
        self.found.push((span.start().line, what.into()));
    }

    fn is_unsafe(&mut self, span: proc_macro2::Span) {
        if !self.rules.may_be_unsafe() && !self.is_promised {
            let places = MAY_BE_UNSAFE.join(", ");
            self.fault(span, format!("unsafe outside of {places}"));
        }
    }

    /// Begins a function; the answer is what `is_promised` was before.
    fn enter(&mut self, function: &Signature) -> bool {
        let is_unsafe = matches!(function.safety, syn::Safety::Unsafe(_));
        std::mem::replace(&mut self.is_promised, is_unsafe)
    }

    fn name(&mut self, name: &Ident) {
        if !self.rules.is_library {
            return;
        }
        for (bindings, place) in BINDINGS {
            if name == bindings && !self.rules.path.starts_with(place) {
                self.fault(
                    name.span(),
                    format!("{bindings} is named outside of {place}"),
                );
            }
        }
    }

    fn names(&mut self, names: &[String], span: proc_macro2::Span) {
        if self.rules.may_start_threads() {
            return;
        }
        for pair in names.windows(2) {
            let [module, name] = pair else { continue };
            if module == "thread" && ["spawn", "Builder", "scope"].contains(&name.as_str()) {
                let what = format!("thread::{name}: ThreadKind::start starts threads");
                self.fault(span, what);
            }
        }
    }

    fn constant(&mut self, name: &Ident, of: &Type) {
        if self.rules.may_have_times() {
            return;
        }
        let is_duration = matches!(of, Type::Path(path)
            if path.path.segments.last().is_some_and(|last| last.ident == "Duration"));
        let text = name.to_string();
        let units = ["_NS", "_US", "_MS", "_SECONDS"];
        if is_duration || units.iter().any(|unit| text.ends_with(unit)) {
            self.fault(
                name.span(),
                format!("{text}: a constant of time outside of a tuning.rs"),
            );
        }
    }

    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if name == "unsafe" {
                        self.is_unsafe(name.span());
                    }
                    self.name(&name);
                    path.push(name.to_string());
                    self.names(&path, name.span());
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => {}
                TokenTree::Group(group) => {
                    path.clear();
                    self.tokens(group.stream());
                }
                _ => path.clear(),
            }
        }
    }
}

impl<'ast> Visit<'ast> for Checker<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(item) if is_test_only(&item.attrs) => {}
            _ => visit::visit_impl_item(self, item),
        }
    }

    fn visit_ident(&mut self, name: &'ast Ident) {
        self.name(name);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for used in flatten(false, &item.tree) {
            self.names(&used.path, item.span());
        }
        visit::visit_item_use(self, item);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let names = path.segments.iter();
        let names: Vec<_> = names.map(|segment| segment.ident.to_string()).collect();
        self.names(&names, path.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        self.tokens(invoked.tokens.clone());
        visit::visit_macro(self, invoked);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast ExprUnsafe) {
        self.is_unsafe(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        let outer = self.enter(&function.sig);
        visit::visit_item_fn(self, function);
        self.is_promised = outer;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        let outer = self.enter(&function.sig);
        visit::visit_impl_item_fn(self, function);
        self.is_promised = outer;
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if item.unsafety.is_some() {
            self.is_unsafe(item.impl_token.span);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if item.unsafety.is_some() {
            self.is_unsafe(item.ident.span());
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        self.constant(&item.ident, &item.ty);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.constant(&item.ident, &item.ty);
        visit::visit_item_static(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.constant(&item.ident, &item.ty);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_vis_restricted(&mut self, visibility: &'ast VisRestricted) {
        if visibility.in_token.is_some() {
            self.fault(visibility.span(), "pub(in …): use pub(super) or pub(crate)");
        }
        visit::visit_vis_restricted(self, visibility);
    }
}
