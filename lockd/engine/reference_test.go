package engine

import (
	"go/ast"
	"strconv"
	"strings"
	"testing"

	"remuda/internal/replica"
	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	m := newMetrics(replica.Name{Model: "m", Variant: "v", ID: "1"}, replica.RolePrimary)
	m.tookOver(&Takeover{Cause: CauseExited}) // it has no series before
	reference.Section(t, "metrics.md", "engine", "## Engine\n\nAt `/metrics` of the address in `remuda engine -listen`. The engine's own metrics are at its own address.\n\n"+reference.Metrics(t, m.registry))
}

func TestReferenceAPI(t *testing.T) {
	src := reference.Source(t, "lockd/engine")
	var rows [][]string
	ast.Inspect(src.Func(t, "Shim.handler"), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		fn, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if on, ok := fn.X.(*ast.Ident); !ok || on.Name != "mux" || !strings.HasPrefix(fn.Sel.Name, "Handle") {
			return true
		}
		route, _ := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
		doc := src.Above(call)
		if doc == "" {
			t.Errorf("the route %s has no comment", route)
		}
		rows = append(rows, []string{reference.Code(route), reference.Reworded(doc, nil)})
		return true
	})
	var states, causes [][]string
	for _, c := range src.Constants() {
		row := []string{reference.Code(c.Value), reference.Plain(t, c)}
		switch c.Type {
		case "State":
			states = append(states, row)
		case "Cause":
			causes = append(causes, row)
		}
	}
	reference.Section(t, "api.md", "engine", "## Engine\n\nAt the address in `remuda engine -listen`. Answers are JSON; of an error it is `{\"error\": \"…\", \"state\": \"…\"}`.\n\n"+
		reference.Table([]string{"Request", "What it does"}, rows)+"\n### State of an engine\n\n"+reference.JSON(t, Status{Consul: &ConsulStatus{}, Lock: &LockStatus{}, Takeover: &Takeover{}}, false)+
		"\nThe states:\n\n"+reference.Table([]string{"State", "Meaning"}, states)+
		"\nThe causes of an end:\n\n"+reference.Table([]string{"Cause", "Meaning"}, causes))
}
