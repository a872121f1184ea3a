package plugin

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceAPM(t *testing.T) {
	src := reference.Source(t, "autoscaler-plugin/plugin")
	docs := map[string]string{}
	src.Inspect(func(n ast.Node) bool {
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.BasicLit); ok {
				name, _ := strconv.Unquote(key.Value)
				if _, doc, ok := strings.Cut(src.Above(pair), ": "); ok && docs[name] == "" {
					docs[name] = doc
				}
			}
		}
		return true
	})
	var rows [][]string
	for _, m := range QueryMetrics() {
		if docs[m] == "" {
			t.Errorf("the metric %s has no comment", m)
		}
		rows = append(rows, []string{reference.Code(m), reference.Reworded(docs[m], nil)})
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	reference.Section(t, "configuration.md", "autoscaler apm", "## APM for nomad-autoscaler\n\nThe block `config` of the plugin takes the settings above, and `dialect` as a strategy does. "+
		"The `query` of a check is `METRIC/MODEL`, or `METRIC/MODEL//VARIANT` for one variant.\n\n"+reference.Table([]string{"Metric", "Value"}, rows))
}
