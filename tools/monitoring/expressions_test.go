package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// labelSet is the labels that the series of an expression may have.
type labelSet map[string]bool

func setOf(names ...string) labelSet {
	s := labelSet{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

func (s labelSet) with(more labelSet) labelSet {
	out := maps.Clone(s)
	maps.Copy(out, more)
	return out
}

// targetLabels are those that a scrape adds: remuda-engine adds the last two.
var targetLabels, engineLabels = setOf("job", "instance"), setOf("replica", "role")

// metricRow is a row of docs/reference/metrics.md.
var metricRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_:]+)` \\| (counter|gauge|histogram) \\| ([^|]*)\\|")

var code = regexp.MustCompile("`([a-z_]+)`")

// checker knows the labels of all series.
type checker struct {
	series map[string]labelSet
	errors []string
}

// newChecker reads the metrics of the reference, which the code of each program generates, and the
// series that the rules record.
func newChecker(t *testing.T) *checker {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/reference/metrics.md")
	require.NoError(t, err)
	c := &checker{series: map[string]labelSet{"up": targetLabels}}
	for _, row := range metricRow.FindAllStringSubmatch(string(page), -1) {
		labels := targetLabels.with(nil)
		for _, l := range code.FindAllStringSubmatch(row[3], -1) {
			labels[l[1]] = true
		}
		if strings.HasPrefix(row[1], "vllm:") {
			labels = labels.with(engineLabels)
		}
		if row[2] == "histogram" {
			c.series[row[1]+"_sum"], c.series[row[1]+"_count"], c.series[row[1]+"_bucket"] = labels, labels, labels.with(setOf("le"))
			continue
		}
		c.series[row[1]] = labels
	}
	require.Greater(t, len(c.series), 150, "the table of docs/reference/metrics.md has another form")
	for _, r := range rules(t) {
		if r.Record != "" {
			c.series[r.Record] = c.check(t, r.Record, r.Expr)
		}
	}
	return c
}

// check parses an expression and returns the labels of its series.
func (c *checker) check(t *testing.T, of, text string) labelSet {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	require.NoError(t, err, of)
	c.errors = nil
	labels := c.labels(expr)
	require.Empty(t, c.errors, "%s: %s", of, text)
	return labels
}

func (c *checker) require(has labelSet, names []string, of parser.Node) {
	for _, n := range names {
		if !has[n] {
			c.errors = append(c.errors, fmt.Sprintf("no label %s in %s", n, of))
		}
	}
}

// labels returns the labels of an expression's series, and notes names that do not exist.
func (c *checker) labels(e parser.Expr) labelSet {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return c.labels(e.Expr)
	case *parser.UnaryExpr:
		return c.labels(e.Expr)
	case *parser.MatrixSelector:
		return c.labels(e.VectorSelector)
	case *parser.VectorSelector:
		has, known := c.series[e.Name]
		if !known {
			c.errors = append(c.errors, "no metric "+e.Name)
			return labelSet{}
		}
		for _, m := range e.LabelMatchers {
			if m.Name != "__name__" {
				c.require(has, []string{m.Name}, e)
			}
		}
		return has
	case *parser.AggregateExpr:
		has := c.labels(e.Expr)
		c.require(has, e.Grouping, e)
		switch {
		case e.Op == parser.TOPK || e.Op == parser.BOTTOMK:
			return has
		case !e.Without:
			return setOf(e.Grouping...)
		}
		out := maps.Clone(has)
		maps.DeleteFunc(out, func(l string, _ bool) bool { return slices.Contains(e.Grouping, l) })
		return out
	case *parser.Call:
		out := labelSet{}
		for _, arg := range e.Args {
			out = out.with(c.labels(arg))
		}
		switch e.Func.Name {
		case "histogram_quantile":
			c.require(out, []string{"le"}, e)
			delete(out, "le")
		case "absent", "vector", "time":
			return labelSet{}
		}
		return out
	case *parser.BinaryExpr:
		left, right := c.labels(e.LHS), c.labels(e.RHS)
		m := e.VectorMatching
		if m == nil { // one side is a number
			return left.with(right)
		}
		if m.On {
			c.require(left, m.MatchingLabels, e)
			c.require(right, m.MatchingLabels, e)
		}
		switch {
		case e.Op == parser.LOR:
			return left.with(right)
		case m.On && !e.Op.IsSetOperator():
			return setOf(m.MatchingLabels...)
		}
		return left
	}
	return labelSet{} // numbers and strings
}

// templateLabel is a label in a legend or in an annotation.
var templateLabel = regexp.MustCompile(`\{\{ *(\w+) *\}\}|\$labels\.(\w+)`)

func labelsIn(template string) (names []string) {
	for _, m := range templateLabel.FindAllStringSubmatch(template, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

// TestRulesNameWhatExists: every metric and label of every rule and annotation.
func TestRulesNameWhatExists(t *testing.T) {
	c := newChecker(t)
	for _, r := range rules(t) {
		has := c.check(t, r.Alert+r.Record, r.Expr)
		for _, text := range r.Annotations {
			for _, l := range labelsIn(text) {
				if l != "else" && l != "end" { // of the template language
					require.True(t, has[l], "%s has no label %s", r.Alert, l)
				}
			}
		}
	}
}

// TestDashboardsNameWhatExists: every metric and label of every panel, legend and variable.
func TestDashboardsNameWhatExists(t *testing.T) {
	c := newChecker(t)
	queries := 0
	for _, b := range boards {
		for _, v := range b.variables {
			require.True(t, c.series[v.metric][v.label], "%s: label_values(%s, %s)", b.name, v.metric, v.label)
		}
		for _, r := range b.rows {
			for _, p := range r.panels {
				for _, q := range p.queries {
					of := b.name + ": " + p.title
					has := c.check(t, of, strings.ReplaceAll(q.expr, "$__rate_interval", "5m"))
					for _, l := range labelsIn(q.legend) {
						require.True(t, has[l], "%s: the legend names %s", of, l)
					}
					queries++
				}
			}
		}
	}
	require.Greater(t, queries, 100)
}

// TestTheCheckerFindsMistakes, so that the tests above can fail.
func TestTheCheckerFindsMistakes(t *testing.T) {
	c := newChecker(t)
	for _, text := range []string{
		`remuda_no_such_metric > 0`,
		`remuda_raft_leader{model="m"}`,
		`sum by (variant) (remuda_gateway_in_flight)`,
		`histogram_quantile(0.5, sum by (model) (rate(remuda_gateway_queue_seconds_bucket[5m])))`,
		`remuda_raft_leader unless on (model) remuda_gateway_slots`,
		`sum by (state) (model:remuda_gateway_requests:rate5m)`,
		`rate(remuda_gateway_queue_seconds[5m])`,
	} {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		require.NoError(t, err)
		c.errors = nil
		c.labels(expr)
		require.NotEmpty(t, c.errors, text)
	}
}
