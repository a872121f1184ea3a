package gateway

import (
	"cmp"
	"fmt"
	"go/ast"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"remuda/internal/certificate"
	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	parse := func(src string) (Config, error) { return Parse("gateway.hcl", []byte(src), DefaultConfig()) }
	own := reference.Keys[Config]{
		Names: reference.Names[Config](),
		Parse: func(values map[string]string) (Config, error) { return parse(reference.HCL(values)) },
	}
	key := reference.Keys[Config]{
		Names: reference.Names[Key](),
		Given: map[string]string{"token": `"secret"`},
		Parse: func(values map[string]string) (Config, error) {
			if _, set := values["sha256"]; set {
				delete(values, "token") // one of them
			}
			return parse(fmt.Sprintf("key \"team\" {\n%s}\n", reference.HCL(values)))
		},
	}
	reference.Section(t, "configuration.md", "gateway", "## Gateway\n\nThe file of `remuda gateway -config FILE`, in HCL.\n\n"+own.Table(t)+
		"\n### Blocks key \"NAME\" of the gateway\n\n"+reference.Reworded(reference.Source(t, "controller/gateway").TypeDoc("Key"), nil)+"\n\n"+key.Table(t))
}

// noEngines is a Watcher that is not asked.
type noEngines struct{ Watcher }

func TestReferenceMetrics(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Watcher, cfg.Controller.Addresses = noEngines{}, []string{"http://127.0.0.1:4750"}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := g.metrics
	m.observe(nil, nil)
	m.certify(&certificate.Pair{})
	reference.Section(t, "metrics.md", "gateway", "## Gateway\n\nAt `/metrics` of the operators' port of `remuda gateway`.\n\n"+reference.Metrics(t, m.registry,
		m.requests, m.duration, m.firstByte, m.firstToken, m.upstreamErrors, m.requestBytes, m.responseBytes, m.queueSeconds, m.queueTimeouts,
		m.refused, m.retries, m.budgetSpent, m.continued, m.unrecorded, m.tokens, m.keyTokens, m.rejectedKeys, &collector{}))
}

func TestReferenceAPI(t *testing.T) {
	src := reference.Source(t, "controller/gateway")
	routes, operators := routesOf(t, src, "Gateway.serve"), routesOf(t, src, "Gateway.operate")

	var headers [][]string
	for _, c := range src.Constants() {
		if strings.HasPrefix(c.Name, "header") {
			if c.Doc == "" {
				t.Errorf("the constant %s has no comment", c.Name)
			}
			headers = append(headers, []string{reference.Code(c.Value), reference.Plain(t, c)})
		}
	}
	slices.SortFunc(headers, func(a, b []string) int { return strings.Compare(a[0], b[0]) })

	var rows [][]string
	for _, e := range append(answers(src), answers(reference.Source(t, "controller/gateway/compose"))...) {
		rows = append(rows, []string{reference.Code(e.code), e.status, reference.Sentence(reference.Text(e.message))})
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0]+a[1]+a[2], b[0]+b[1]+b[2]) })
	rows = slices.CompactFunc(rows, func(a, b []string) bool { return slices.Equal(a, b) })
	reference.Section(t, "api.md", "gateway", "## Gateway\n\nAt the address in the setting `listen`. The requests and the answers of engines are those of OpenAI's API.\n\n"+
		reference.Table([]string{"Request", "What it does"}, routes)+
		"\n### Operators' port of the gateway\n\nAt the address in the setting `operator_listen`.\n\n"+reference.Table([]string{"Request", "What it does"}, operators)+
		"\n### Headers of the gateway\n\n"+reference.Table([]string{"Header", "Meaning"}, headers)+
		"\n### Errors of the gateway\n\nThe body is `{\"error\": {\"message\": \"…\", \"type\": \"…\", \"param\": null, \"code\": \"…\"}}`. In a stream that has begun it is an event. "+
		"`…` stands for a value.\n\n"+reference.Table([]string{"Code", "Status", "Message"}, rows))
}

// routesOf reads the routes of a handler from its cases, each with its comment. The default case
// is that of the models, where it has a comment.
func routesOf(t *testing.T, src *reference.Package, handler string) (routes [][]string) {
	ast.Inspect(src.Func(t, handler), func(n ast.Node) bool {
		c, ok := n.(*ast.CaseClause)
		if !ok || len(c.List) == 0 && src.Above(c) == "" {
			return true
		}
		path := pathModels
		if len(c.List) > 0 {
			path, _ = strconv.Unquote(c.List[0].(*ast.BasicLit).Value)
		}
		doc := src.Above(c)
		if doc == "" {
			t.Errorf("the route %s has no comment", path)
		}
		routes = append(routes, []string{reference.Code("GET " + path), reference.Reworded(doc, nil)})
		return true
	})
	var engine []*route
	if handler == "Gateway.serve" {
		engine = slices.Collect(maps.Values(engineRoutes))
		for _, methods := range storedRoutes {
			engine = slices.AppendSeq(engine, maps.Values(methods))
		}
	}
	slices.SortFunc(engine, func(a, b *route) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method)) })
	for _, r := range engine {
		routes = append(routes, []string{reference.Code(r.method + " " + r.path), r.about + " Engines: " + strings.Join(r.dialects, ", ") + "."})
	}
	slices.SortStableFunc(routes, func(a, b []string) int { return cmp.Compare(strings.Count(b[0], "/"), strings.Count(a[0], "/")) })
	return routes
}

// failed is an error that clients may get.
type failed struct{ code, status, message string }

// answers finds the errors that a package answers with: a status and a code in one literal,
// in one assignment, or in one call.
func answers(src *reference.Package) []failed {
	var out []failed
	add := func(status, code ast.Expr, message string) {
		lit, ok := code.(*ast.BasicLit)
		if gone, is := status.(*ast.Ident); !ok || is && gone.Name == "statusClientGone" { // it is only counted
			return
		}
		name, _ := strconv.Unquote(lit.Value)
		out = append(out, failed{name, statusText(status), message})
	}
	src.Inspect(func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			fields := map[string]ast.Expr{}
			for _, e := range n.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok {
						fields[key.Name] = pair.Value
					}
				}
			}
			if fields["status"] != nil && fields["code"] != nil {
				add(fields["status"], fields["code"], firstText(fields["message"]))
			}
		case *ast.AssignStmt:
			if len(n.Lhs) == 2 && len(n.Rhs) == 2 && isField(n.Lhs[0], "status") && isField(n.Lhs[1], "code") {
				add(n.Rhs[0], n.Rhs[1], "")
			}
		case *ast.CallExpr:
			if fn, ok := n.Fun.(*ast.Ident); ok && fn.Name == "errEngine" {
				add(n.Args[0], n.Args[1], "an engine of the model … "+cmp.Or(firstText(n.Args[3]), "…"))
			}
		}
		return true
	})
	return out
}

func isField(e ast.Expr, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && s.Sel.Name == name
}

// firstText is the first string in an expression, with its verbs replaced.
func firstText(e ast.Expr) string {
	text := ""
	if e == nil {
		return text
	}
	ast.Inspect(e, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && text == "" {
			text, _ = strconv.Unquote(lit.Value)
		}
		return text == ""
	})
	if strings.HasSuffix(text, ": ") {
		text += "…" // the rest is a value
	}
	return strings.NewReplacer("%s", "…", "%d", "…", "%q", "…", "%v", "…", "%w", "…").Replace(text)
}

// statusText is the number of a constant of net/http, or "the engine's".
func statusText(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		for code := 100; code < 600; code++ {
			if "Status"+strings.NewReplacer(" ", "", "-", "").Replace(http.StatusText(code)) == s.Sel.Name {
				return strconv.Itoa(code)
			}
		}
	}
	return "the engine's"
}
