package reference_test

import (
	"fmt"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
)

var (
	// ownVariable is a variable that this project names.
	ownVariable = regexp.MustCompile(`^(?:REMUDA|GMS)_[A-Z0-9_]+$`)
	// variable is any.
	variable = regexp.MustCompile(`^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$`)
)

// commands are the programs that are shipped.
var commands = []string{"cmd/remuda", "cmd/remuda-device", "cmd/remuda-autoscaler"}

func TestReferenceEnvironment(t *testing.T) {
	docs, where := map[string][]string{}, map[string][]string{}
	note := func(of map[string][]string, name, what string) {
		if what != "" && !slices.Contains(of[name], what) {
			of[name] = append(of[name], what)
		}
	}
	others := map[string]bool{}
	for _, path := range reference.Shipped(t, commands...) {
		p := reference.Source(t, path)
		for _, c := range p.Constants() {
			if ownVariable.MatchString(c.Value) || variable.MatchString(c.Value) && strings.Contains(strings.ToLower(c.Name), "env") {
				if c.Own {
					note(docs, c.Value, reference.Plain(t, c))
				}
				note(where, c.Value, path)
			}
		}
		p.Inspect(func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if name := strings.TrimSuffix(text, "="); err == nil && ownVariable.MatchString(name) {
					note(where, name, path)
				}
			case *ast.CallExpr:
				fn, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || len(n.Args) != 1 || fn.Sel.Name != "Getenv" && fn.Sel.Name != "LookupEnv" {
					return true
				}
				if lit, ok := n.Args[0].(*ast.BasicLit); ok {
					if name, _ := strconv.Unquote(lit.Value); !ownVariable.MatchString(name) {
						others[name] = true
					}
				}
			}
			return true
		})
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(where)) {
		if len(docs[name]) == 0 {
			t.Errorf("the variable %s, in %s, is no constant with a comment: make it one", name, strings.Join(where[name], ", "))
		}
		rows = append(rows, []string{reference.Code(name), strings.Join(docs[name], " "), reference.Codes(where[name])})
	}
	reference.Section(t, "environment.md", "variables", fmt.Sprintf("## Environment variables\n\nVariables that the programs read, or set for the tasks and the processes that they start, with the packages that do so.\n\n%s\n"+
		"Read with the meaning that they have elsewhere: %s, and what the clients of Nomad and of Consul read themselves, as `NOMAD_TOKEN` and `CONSUL_HTTP_TOKEN`.\n",
		reference.Table([]string{"Variable", "Meaning", "Packages"}, rows), reference.Codes(slices.Sorted(maps.Keys(others)))))
}

// named are the constants of a package whose names begin with a word.
func named(t *testing.T, path, prefix, valuePrefix string) string {
	t.Helper()
	var rows [][]string
	for _, c := range reference.Source(t, path).Constants() {
		if !strings.HasPrefix(c.Name, prefix) || c.Value == "" {
			continue
		}
		if c.Doc == "" {
			t.Errorf("%s: the constant %s has no comment: write one", path, c.Name)
		}
		rows = append(rows, []string{reference.Code(valuePrefix + c.Value), reference.Plain(t, c)})
	}
	if len(rows) == 0 {
		t.Errorf("%s has no constants %s…", path, prefix)
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return reference.Table([]string{"Name", "Meaning"}, rows)
}

func TestReferenceNomad(t *testing.T) {
	reference.Section(t, "environment.md", "nomad", "## Nomad\n\n### Variables of job files\n\nThe controller gives them their values where a job file declares them.\n\n"+
		named(t, "controller/modelfile", "Var", "")+
		"\n### Meta of replicas' jobs\n\nA task sees them as `NOMAD_META_…`.\n\n"+named(t, "controller/nomad", "Meta", "")+
		"\n### Environment of engines' tasks\n\nThe controller sets it.\n\n"+named(t, "controller/nomad", "Env", "")+
		"\n### Environment of tasks with seats\n\nThe device plugin sets it.\n\n"+named(t, "device-plugin", "Env", "")+
		"\n### Attributes of devices\n\nFor constraints and affinities in `device \"nvidia/gpu\"`.\n\n"+named(t, "device-plugin", "Attr", "device.attr."))
}
