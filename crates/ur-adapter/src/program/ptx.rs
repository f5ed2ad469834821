//! PTX, the assembly language for NVIDIA GPUs. The adapter reads the block sizes for which kernels
//! were compiled, because the driver does not report them.

/// The block sizes from a kernel's directives, in threads.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Blocks {
    /// The only block size with which the driver launches the kernel (`.reqntid`).
    pub(super) required: Option<[usize; 3]>,
    /// A block size whose product is the maximum number of threads (`.maxntid`).
    pub(super) extents: Option<[usize; 3]>,
}

/// Returns whether a text starts like PTX, with a `.version` directive.
pub(super) fn is_assembly(text: &str) -> bool {
    Tokens::new(text).next() == Some(".version")
}

/// Returns the block sizes of each kernel that has such directives. For invalid assembly, the
/// result is arbitrary, because the compiler rejects the assembly anyway.
pub(super) fn blocks(text: &str) -> Vec<(&str, Blocks)> {
    let mut tokens = Tokens::new(text);
    let mut found = Vec::new();
    while let Some(token) = tokens.next() {
        if token != ".entry" {
            continue;
        }
        let Some(name) = tokens.next() else { break };
        let mut blocks = Blocks::default();
        // Directives follow the parameters, and end at the body or at the semicolon of a
        // declaration.
        let mut token = tokens.next();
        while let Some(directive) = token {
            token = match directive {
                "{" | ";" => break,
                ".reqntid" | ".maxntid" => {
                    let (size, next) = tokens.size();
                    let place = match directive {
                        ".reqntid" => &mut blocks.required,
                        _ => &mut blocks.extents,
                    };
                    *place = place.or(size);
                    next
                }
                _ => tokens.next(),
            };
        }
        if blocks != Blocks::default() {
            found.push((name, blocks));
        }
    }
    found
}

/// An iterator over the tokens of PTX: names with their dots, numbers, string literals, and single
/// characters. Comments are skipped.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// Reads a size of one to three numbers. Returns the size and the token that follows it. The
    /// missing dimensions become 1.
    fn size(&mut self) -> (Option<[usize; 3]>, Option<&'a str>) {
        let mut size = [1; 3];
        let mut token = self.next();
        for (index, place) in size.iter_mut().enumerate() {
            let Some(number) = token.and_then(|token| token.parse().ok()) else {
                return (None, token);
            };
            *place = number;
            token = self.next();
            if token != Some(",") || index == 2 {
                break;
            }
            token = self.next();
        }
        (Some(size), token)
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            self.rest = self.rest.trim_start();
            let behind = if let Some(comment) = self.rest.strip_prefix("//") {
                comment.split_once('\n').map(|(_, rest)| rest)
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                comment.split_once("*/").map(|(_, rest)| rest)
            } else {
                break;
            };
            self.rest = behind.unwrap_or_default();
        }
        let first = self.rest.chars().next()?;
        let is_part = |part: char| part.is_ascii_alphanumeric() || "._$%".contains(part);
        let end = match first {
            // A string literal, such as the path of a file, may contain characters that look like a
            // comment.
            '"' => self.rest[1..].find('"').map(|end| end + 2),
            _ if is_part(first) => self.rest.find(|part| !is_part(part)),
            _ => Some(first.len_utf8()),
        };
        let (token, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        // .entry commented() .reqntid 9
        .version 8.0
        .target sm_70
        .file 1 \"/home/*/a//b.cu\" .pragma \".entry quoted() .reqntid 3\";
        .visible .entry plain(.param .u64 plain_param_0) { ret; }
        .weak .entry _Zfixed$1 ( .param .align 8 .b8 p[8], .param .u32 q )
        .reqntid 2, 4,/* .maxntid 7 */8
        .minnctapersm 1
        { .reg .pred %p<2>; ret; }
        .entry most .maxntid 256 .maxnreg 32 { ret; }
        .extern .entry declared() .maxntid 8,8;
        .func after() .reqntid { ret; }
    "#;

    #[test]
    fn sizes_are_those_of_kernels() {
        assert!(is_assembly(TEXT) && !is_assembly("kernel void a() {}") && !is_assembly(""));
        let required = Blocks {
            required: Some([2, 4, 8]),
            extents: None,
        };
        let extents = |size| Blocks {
            required: None,
            extents: Some(size),
        };
        assert_eq!(
            blocks(TEXT),
            [
                ("_Zfixed$1", required),
                ("most", extents([256, 1, 1])),
                ("declared", extents([8, 8, 1])),
            ]
        );
    }

    #[test]
    fn whatever_text_is_read_to_its_end() {
        for end in 0..TEXT.len() {
            blocks(&TEXT[..end]);
        }
        for text in [
            ".entry",
            ".entry a .reqntid",
            ".entry a .reqntid 1,",
            ".entry a .reqntid 99999999999999999999999 {",
            ".entry a .maxntid -1 {",
            "/*",
            "//",
            "\"",
            ".entry a .maxntid \"8",
            "ö.entry ß .maxntid ä",
        ] {
            assert!(blocks(text).is_empty(), "{text}");
        }
    }
}
