package gateway

import (
	"fmt"
	"slices"
	"testing"

	"remuda/controller/gateway/queue"
	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	parse := func(src string) (Config, error) { return Parse("gateway.hcl", []byte(src), DefaultConfig()) }
	own := reference.Keys[Config]{
		Names: reference.Names(append(slices.Clone(settings), limitSettings("keys", func(c *Config) *queue.KeyLimit { return &c.Keys.Default })...)),
		Parse: func(values map[string]string) (Config, error) { return parse(reference.HCL(values)) },
	}
	key := reference.Keys[Config]{
		Names: reference.Names(keyBlocks().Settings("NAME")),
		Given: map[string]string{"token": `"secret"`},
		Docs:  map[string]string{"token": "The key itself, in place of its sha256."},
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
	reference.Section(t, "metrics.md", "gateway", "## Gateway\n\nAt `/metrics` of `remuda gateway`.\n\n"+reference.Metrics(t, m.registry,
		m.requests, m.duration, m.firstByte, m.upstreamErrors, m.requestBytes, m.responseBytes, m.queueSeconds, m.queueTimeouts,
		m.refused, m.retries, m.budgetSpent, m.continued, &rosterCollector{}))
}
