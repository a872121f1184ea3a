package modelfile

import (
	"fmt"
	"go/ast"
	"strconv"
	"testing"

	"remuda/controller/state"
	"remuda/internal/testkit/reference"
)

// attributes are those that a function of the parser allows in a block.
func attributes(t *testing.T, function string) []string {
	t.Helper()
	var out []string
	ast.Inspect(reference.Source(t, "controller/modelfile").Func(t, function), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 3 {
			return true
		}
		fn, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || fn.Sel.Name != "scope" {
			return true
		}
		prefix := ""
		if path, ok := call.Args[1].(*ast.BinaryExpr); ok { // s.path + ": idle"
			prefix, _ = strconv.Unquote(path.Y.(*ast.BasicLit).Value)
			prefix = prefix[len(": "):] + "."
		}
		for _, name := range call.Args[2].(*ast.CompositeLit).Elts {
			text, _ := strconv.Unquote(name.(*ast.BasicLit).Value)
			out = append(out, prefix+text)
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s calls no scope with names of attributes", function)
	}
	return out
}

func TestReferenceConfiguration(t *testing.T) {
	read := func(string) ([]byte, error) {
		return []byte("variable \"weights_dir\" { default = \"\" }\njob \"m\" {\n  group \"replica\" {}\n}\n"), nil
	}
	parse := func(model, variant map[string]string) (state.Model, error) {
		models, err := Parse("m.hcl", fmt.Appendf(nil, "model \"m\" {\n%svariant \"v\" {\n%s}\n}\n", reference.HCL(model), reference.HCL(variant)), read)
		if err != nil {
			return state.Model{}, err
		}
		m := models[0]
		m.Hash, m.Variants[0].Hash = "", ""
		return m, nil
	}
	needed := map[string]string{"weights": `"16GiB"`, "job": `"a.hcl"`}
	models := reference.Keys[state.Model]{
		Names:    attributes(t, "parser.model"),
		Parse:    func(values map[string]string) (state.Model, error) { return parse(values, needed) },
		Examples: map[string]string{"management": `"manual"`},
	}
	variants := reference.Keys[state.Model]{
		Names: append(attributes(t, "parser.variant"), attributes(t, "parser.gpu")...),
		Given: needed,
		Parse: func(values map[string]string) (state.Model, error) { return parse(nil, values) },
		Examples: map[string]string{
			"engine": `"ollama"`, "job": "\"job \\\"other\\\" {\\n  group \\\"replica\\\" {}\\n}\\n\"", "vars": `{ weights_dir = "/models" }`, "gpu.memory": `"12GiB"`,
		},
		Docs: map[string]string{
			"vars":       "The values of the job file's variables by their names.",
			"gpu.memory": "The memory of each GPU, in place of a count: the number of GPUs follows from the weights.",
		},
		Derived: map[string]string{"memory": "from `weights`", "host_memory": "from `weights`", "cost": "`gpu.count`", "gpu.memory": "", "gpu.reach": "`gpu.count`"},
	}
	reference.Section(t, "configuration.md", "model", "## Model file\n\nThe file of `remuda model apply FILE`, in HCL: any number of blocks `model \"NAME\"`, each with one or more blocks `variant \"NAME\"`.\n\n"+
		reference.Source(t, "controller/modelfile").Overview(t, "It guarantees")+"\n### Blocks model \"NAME\"\n\n"+models.Table(t)+"\n### Blocks variant \"NAME\" of a model\n\n"+variants.Table(t))
}
