package reference

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Recorder is a Registerer that keeps the collectors that it gets.
type Recorder struct{ Collectors []prometheus.Collector }

var _ prometheus.Registerer = (*Recorder)(nil)

// Register keeps a collector.
func (r *Recorder) Register(c prometheus.Collector) error {
	r.Collectors = append(r.Collectors, c)
	return nil
}

// MustRegister keeps collectors.
func (r *Recorder) MustRegister(cs ...prometheus.Collector) {
	r.Collectors = append(r.Collectors, cs...)
}

// Unregister is not needed by anything that is described.
func (r *Recorder) Unregister(prometheus.Collector) bool { return false }

// metric is one row.
type metric struct {
	name, help string
	labels     []string
	kind       string
}

// Metrics lists the metrics of collectors. A registry among them is described by the others:
// they must describe all that it has but the metrics of the runtime and of the process. What a collector of the program's own has is a gauge,
// unless it collects something else now.
func Metrics(t testing.TB, collectors ...prometheus.Collector) string {
	t.Helper()
	found := map[string]*metric{}
	for _, c := range collectors {
		kind := kindOfCollector(c)
		registry, whole := c.(*prometheus.Registry)
		for _, d := range described(c) {
			m := parseDesc(t, d)
			if strings.HasPrefix(m.name, "go_") || strings.HasPrefix(m.name, "process_") {
				continue
			}
			was := found[m.name]
			if was == nil {
				was = m
				found[m.name] = m
			}
			if !whole && was.kind == "" {
				was.kind = kind
			}
		}
		if whole {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if m := found[f.GetName()]; m != nil {
					m.kind = strings.ToLower(f.GetType().String())
				}
			}
		}
	}
	var names []string
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	var rows [][]string
	for _, name := range names {
		m := found[name]
		if m.kind == "" {
			t.Errorf("the type of the metric %s is not known: pass its collector", name)
		}
		if m.help == "" {
			t.Errorf("the metric %s has no help", name)
		}
		rows = append(rows, []string{Code(name), m.kind, Codes(m.labels), m.help})
	}
	return Table([]string{"Metric", "Type", "Labels", "Meaning"}, rows)
}

func described(c prometheus.Collector) []*prometheus.Desc {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		c.Describe(ch)
	}()
	var all []*prometheus.Desc
	for d := range ch {
		all = append(all, d)
	}
	return all
}

// kindOfCollector is the type of a collector's metrics, empty of a registry.
func kindOfCollector(c prometheus.Collector) string {
	switch c := c.(type) {
	case *prometheus.Registry:
		return ""
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec:
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	case prometheus.Metric:
		var m dto.Metric
		if err := c.Write(&m); err != nil {
			return ""
		}
		switch {
		case m.Counter != nil:
			return "counter"
		case m.Histogram != nil:
			return "histogram"
		case m.Summary != nil:
			return "summary"
		}
		return "gauge"
	default:
		return "gauge"
	}
}

// descText is what Desc.String writes: there is no other way to read one.
var descText = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "(?:[^"\\]|\\.)*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

var constLabel = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)="`)

func parseDesc(t testing.TB, d *prometheus.Desc) *metric {
	t.Helper()
	parts := descText.FindStringSubmatch(d.String())
	if parts == nil {
		t.Fatalf("a metric's description has another form than expected: %s", d)
	}
	m := &metric{name: unquote(parts[1]), help: unquote(parts[2])}
	for _, l := range constLabel.FindAllStringSubmatch(parts[3], -1) {
		m.labels = append(m.labels, l[1])
	}
	if parts[4] != "" {
		m.labels = append(m.labels, strings.Split(parts[4], ",")...)
	}
	return m
}
