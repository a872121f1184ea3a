package reference

import (
	"go/ast"
	"go/build"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// modulePath is the prefix of the packages of this module.
const modulePath = "remuda/"

// Root is the directory of the module.
func Root(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		if filepath.Dir(at) == at {
			t.Fatal("there is no go.mod above the working directory")
		}
		at = filepath.Dir(at)
	}
}

// Package is the source of a package without its tests.
type Package struct {
	// Path is the directory below the root of the module.
	Path  string
	files []*ast.File
	fset  *token.FileSet
}

var parsed sync.Map // *Package by directory

// Source parses the package in a directory below the root of the module.
func Source(t testing.TB, path string) *Package {
	t.Helper()
	at := filepath.Join(Root(t), path)
	if p, ok := parsed.Load(at); ok {
		return p.(*Package)
	}
	p := &Package{Path: path, fset: token.NewFileSet()}
	entries, err := os.ReadDir(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if match, err := build.Default.MatchFile(at, e.Name()); err != nil || !match {
			continue // of another system, or for tests
		}
		f, err := parser.ParseFile(p.fset, filepath.Join(at, e.Name()), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, f)
	}
	parsed.Store(at, p)
	return p
}

// sourceOf parses the package of a type of this module, nil of another.
func sourceOf(t testing.TB, typ reflect.Type) *Package {
	t.Helper()
	if path, own := strings.CutPrefix(typ.PkgPath(), modulePath); own {
		return Source(t, strings.TrimSuffix(path, "_test"))
	}
	return nil
}

// Overview is the comment of the package from its first example on, without the paragraphs
// that begin with one of some words: they are for readers of the source.
func (p *Package) Overview(t testing.TB, without ...string) string {
	t.Helper()
	for _, f := range p.files {
		if f.Doc == nil {
			continue
		}
		doc := new(comment.Parser).Parse(f.Doc.Text())
		for len(doc.Content) > 0 {
			if _, example := doc.Content[0].(*comment.Code); example {
				break
			}
			doc.Content = doc.Content[1:]
		}
		var out comment.Doc
		printer := &comment.Printer{HeadingLevel: 4}
		for _, block := range doc.Content {
			one := strings.TrimSpace(string(printer.Markdown(&comment.Doc{Content: []comment.Block{block}})))
			if !slices.ContainsFunc(without, func(prefix string) bool { return strings.HasPrefix(one, prefix) }) {
				out.Content = append(out.Content, block)
			}
		}
		if len(out.Content) == 0 {
			t.Fatalf("the comment of the package %s has no example", p.Path)
		}
		text := string(printer.Markdown(&out))
		for _, c := range p.Constants() {
			if _, err := strconv.Atoi(c.Value); err == nil {
				text = regexp.MustCompile(`\b`+c.Name+`\b`).ReplaceAllString(text, c.Value)
			}
		}
		return text
	}
	t.Fatalf("the package %s has no comment", p.Path)
	return ""
}

// Field is a field of a struct in the source.
type Field struct {
	Name string
	// Doc is its comment. A field without one has that of the field of the same struct whose
	// comment names it.
	Doc string
	// Type is the type as the source has it.
	Type string
	// Tag is the tag without its quotes.
	Tag reflect.StructTag
}

// Fields are the fields of a struct type, nil where the package has no such struct.
func (p *Package) Fields(typ string) []Field {
	for _, f := range p.files {
		for _, d := range f.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				if ts := spec.(*ast.TypeSpec); ts.Name.Name == typ {
					if st, ok := ts.Type.(*ast.StructType); ok {
						return p.fields(st)
					}
				}
			}
		}
	}
	return nil
}

func (p *Package) fields(st *ast.StructType) []Field {
	var out []Field
	for _, f := range st.Fields.List {
		doc := text(f.Doc, f.Comment)
		tag := ""
		if f.Tag != nil {
			tag, _ = strconv.Unquote(f.Tag.Value)
		}
		names := f.Names
		if len(names) == 0 { // embedded
			names = []*ast.Ident{{Name: last(types(f.Type))}}
		}
		for _, n := range names {
			out = append(out, Field{Name: n.Name, Doc: doc, Type: types(f.Type), Tag: reflect.StructTag(tag)})
		}
	}
	inherit(len(out), func(i int) string { return out[i].Name }, func(i int) *string { return &out[i].Doc })
	return out
}

// inherit gives what has no comment that of the nearest neighbour whose comment names it.
func inherit(n int, name func(int) string, doc func(int) *string) {
	own := make([]string, n)
	for i := range n {
		own[i] = *doc(i)
	}
	for i := range n {
		if own[i] != "" {
			continue
		}
		word := regexp.MustCompile(`\b` + regexp.QuoteMeta(name(i)) + `\b`)
		for off := 1; off < n && *doc(i) == ""; off++ {
			for _, k := range []int{i - off, i + off} {
				if k >= 0 && k < n && word.MatchString(own[k]) {
					*doc(i) = own[k]
					break
				}
			}
		}
	}
}

// types writes a type's expression.
func types(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return types(e.X) + "." + e.Sel.Name
	case *ast.StarExpr:
		return types(e.X)
	case *ast.ArrayType:
		return "[]" + types(e.Elt)
	case *ast.MapType:
		return "map[" + types(e.Key) + "]" + types(e.Value)
	case *ast.IndexExpr:
		return types(e.X)
	}
	return ""
}

func last(dotted string) string { return dotted[strings.LastIndex(dotted, ".")+1:] }

func text(groups ...*ast.CommentGroup) string {
	for _, g := range groups {
		if g != nil {
			return strings.TrimSpace(g.Text())
		}
	}
	return ""
}

// TypeDoc is the comment of a type.
func (p *Package) TypeDoc(name string) string {
	for _, f := range p.files {
		for _, d := range f.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				if ts := spec.(*ast.TypeSpec); ts.Name.Name == name {
					if doc := text(ts.Doc); doc != "" {
						return doc
					}
					return text(gen.Doc)
				}
			}
		}
	}
	return ""
}

// Constant is a constant with a string or a number as its value.
type Constant struct {
	Name, Value string
	// Doc is its comment. One without a comment has that of its group, where it is alone in
	// it, or that of the constant of the group whose comment names it.
	Doc string
	// Own tells that the comment is its own.
	Own bool
	// Type is its type as the source has it, empty where it has none.
	Type string
	// Package is the directory of its package.
	Package string
}

// Constants are the constants of the package whose values stand in the source, in their
// order.
func (p *Package) Constants() []Constant {
	var out []Constant
	for _, f := range p.files {
		for _, d := range f.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			from := len(out)
			for _, spec := range gen.Specs {
				vs := spec.(*ast.ValueSpec)
				doc := text(vs.Doc, vs.Comment)
				if doc == "" && len(gen.Specs) == 1 {
					doc = text(gen.Doc)
				}
				for i, n := range vs.Names {
					c := Constant{Name: n.Name, Doc: doc, Own: doc != "", Package: p.Path, Type: types(vs.Type)}
					if i < len(vs.Values) {
						if lit, ok := vs.Values[i].(*ast.BasicLit); ok {
							c.Value = lit.Value
							if lit.Kind == token.STRING {
								c.Value, _ = strconv.Unquote(lit.Value)
							}
						}
					}
					out = append(out, c)
				}
			}
			group := out[from:]
			inherit(len(group), func(i int) string { return group[i].Name }, func(i int) *string { return &group[i].Doc })
		}
	}
	return out
}

// Func is a function or a method by its name, as "Server.handler".
func (p *Package) Func(t testing.TB, name string) *ast.FuncDecl {
	t.Helper()
	for _, f := range p.files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			full := fn.Name.Name
			if fn.Recv != nil {
				full = types(fn.Recv.List[0].Type) + "." + full
			}
			if full == name {
				return fn
			}
		}
	}
	t.Fatalf("%s has no function %s", p.Path, name)
	return nil
}

// Inspect visits every node of the package.
func (p *Package) Inspect(visit func(ast.Node) bool) {
	for _, f := range p.files {
		ast.Inspect(f, visit)
	}
}

// Above is the comment that ends on the line above a node, or on its line.
func (p *Package) Above(n ast.Node) string {
	at := p.fset.Position(n.Pos())
	for _, f := range p.files {
		if p.fset.Position(f.Pos()).Filename != at.Filename {
			continue
		}
		for _, g := range f.Comments {
			if p.fset.Position(g.End()).Line == at.Line-1 || p.fset.Position(g.Pos()).Line == at.Line {
				return strings.TrimSpace(g.Text())
			}
		}
	}
	return ""
}

// FieldDoc is the comment of a field of a type of this module.
func FieldDoc(t testing.TB, typ reflect.Type, field string) string {
	t.Helper()
	p := sourceOf(t, typ)
	if p == nil {
		return ""
	}
	for _, f := range p.Fields(typ.Name()) {
		if f.Name == field {
			return f.Doc
		}
	}
	return ""
}

// Shipped are the directories of the packages of this module that some packages link,
// themselves included, sorted.
func Shipped(t testing.TB, commands ...string) []string {
	t.Helper()
	root := Root(t)
	found := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if found[path] {
			return
		}
		found[path] = true
		p, err := build.ImportDir(filepath.Join(root, path), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range p.Imports {
			if inner, own := strings.CutPrefix(i, modulePath); own {
				visit(inner)
			}
		}
	}
	for _, c := range commands {
		visit(c)
	}
	return slices.Sorted(maps.Keys(found))
}

// Plain is a comment without the name that it begins with, as of "Fenced: no requests" or
// "CodeStale is old". Names of constants of the package become their values.
func Plain(t testing.TB, c Constant) string {
	t.Helper()
	doc := strings.Join(strings.Fields(c.Doc), " ")
	for _, sep := range []string{": ", " is ", " are "} {
		if rest, ok := strings.CutPrefix(doc, c.Name+sep); ok {
			doc = rest
			break
		}
	}
	values := map[string]string{}
	for _, other := range Source(t, c.Package).Constants() {
		if len(other.Name) > 2 && other.Value != "" && !strings.EqualFold(other.Name, other.Value) {
			values[other.Name] = other.Value
		}
	}
	return Sentence(regexp.MustCompile(`\w+`).ReplaceAllStringFunc(Text(doc), func(w string) string {
		if value, ok := values[w]; ok {
			return Code(value)
		}
		return w
	}))
}
