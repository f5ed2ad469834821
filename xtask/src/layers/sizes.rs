//! Allocations in code that parses what others wrote: their sizes are constants, or a `Bounded`.

use super::rules::Found;
use super::tree::{is_test_only, item_attributes};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ImplItem, Item, Macro};

/// Files and directories whose input comes from peers, linked hosts, files or other users.
const PARSERS: &[&str] = &[
    "crates/crosshandle/src/api/holder/",
    "crates/crosshandle/src/api/report/",
    "crates/crosshandle/src/handle/",
    "crates/crosshandle/src/ipc/broker/",
    "crates/crosshandle/src/ipc/chunks/",
    "crates/crosshandle-store/src/manifest.rs",
    "crates/crosshandle-store/src/source.rs",
    "crates/crosshandle-store/src/state.rs",
    "crates/crosshandle-link/src/control/",
    "crates/crosshandle-link/src/link/",
    "crates/crosshandle-link/src/memory/",
    "crates/crosshandle-link/src/neighbour/",
    "crates/crosshandle-cli/src/commands/link/",
];
/// The file that may allocate by a length which it has checked.
const BOUNDED: &str = "crates/crosshandle/src/handle/bounded.rs";
/// Methods that allocate as many elements as their first argument says.
const METHODS: [&str; 6] = [
    "reserve",
    "reserve_exact",
    "try_reserve",
    "try_reserve_exact",
    "resize",
    "set_len",
];

/// Returns whether a file is one that parses.
pub(crate) fn applies(path: &str) -> bool {
    path != BOUNDED && PARSERS.iter().any(|parser| path.starts_with(parser))
}

/// Returns each allocation in a file whose size is neither a constant nor a `Bounded`.
pub(crate) fn check(file: &syn::File) -> Vec<Found> {
    let mut checker = Checker { found: Vec::new() };
    checker.visit_file(file);
    checker.found
}

struct Checker {
    found: Vec<Found>,
}

impl Checker {
    fn size(&mut self, size: &Expr, what: &str) {
        if !is_fixed(size) {
            let message = format!("{what}: a size that a peer may choose; use `Bounded`");
            self.found.push((size.span().start().line, message));
        }
    }
}

/// Returns whether an expression has literals and constants alone.
fn is_fixed(size: &Expr) -> bool {
    match size {
        Expr::Lit(_) => true,
        Expr::Path(path) => path.path.segments.last().is_some_and(|last| {
            let name = last.ident.to_string();
            !name.contains(char::is_lowercase)
        }),
        Expr::Binary(binary) => is_fixed(&binary.left) && is_fixed(&binary.right),
        Expr::Paren(inner) => is_fixed(&inner.expr),
        Expr::Cast(cast) => is_fixed(&cast.expr),
        Expr::Call(call) => call.args.is_empty() && names(&call.func, "size_of"),
        _ => false,
    }
}

fn names(function: &Expr, name: &str) -> bool {
    matches!(function, Expr::Path(path)
        if path.path.segments.last().is_some_and(|last| last.ident == name))
}

impl<'ast> Visit<'ast> for Checker {
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

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if names(&call.func, "with_capacity")
            && let Some(size) = call.args.first()
        {
            self.size(size, "with_capacity");
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        if METHODS.contains(&name.as_str())
            && let Some(size) = call.args.first()
        {
            self.size(size, &name);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        if invoked.path.is_ident("vec") {
            let repeated = |input: syn::parse::ParseStream<'_>| {
                input.parse::<Expr>()?;
                input.parse::<syn::Token![;]>()?;
                input.parse::<Expr>()
            };
            if let Ok(size) = repeated.parse2(invoked.tokens.clone()) {
                self.size(&size, "vec!");
            }
        }
        visit::visit_macro(self, invoked);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_of_others_are_found() {
        let source = "
            const MAX: usize = 1 << 10;
            fn parse(claimed: usize) {
                let _ = (vec![0; MAX + 2 * size_of::<u64>()], vec![claimed], vec![0u8; claimed]);
                Vec::<u8>::with_capacity(claimed).resize(claimed, 0);
            }
            #[cfg(test)]
            mod tests { fn of(claimed: usize) { vec![0; claimed]; } }
        ";
        let found = super::check(&syn::parse_file(source).expect("a source"));
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
