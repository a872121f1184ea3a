package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// root is the repository's.
const root = "../.."

const files = root + "/jobs/monitoring/"

// rule is an alert or a recording rule of rules.yml.
type rule struct {
	Record, Alert, Expr string
	For                 string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	parse(t, files+"rules.yml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func parse(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(raw, into))
}

// promtool runs Debian's, which `make prometheus` unpacks.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := filepath.Abs(root + "/.tools/bin/promtool")
	require.NoError(t, err)
	out, err := exec.Command(path, args...).CombinedOutput()
	require.NoError(t, err, "%s\nrun: make prometheus, if it is missing", out)
}

func TestDashboardsAreCurrent(t *testing.T) {
	written, err := filepath.Glob(files + "dashboards/*.json")
	require.NoError(t, err)
	require.Len(t, written, len(boards))
	for _, b := range boards {
		want, err := b.json()
		require.NoError(t, err)
		is, err := os.ReadFile(files + "dashboards/" + b.name + ".json")
		require.NoError(t, err)
		require.True(t, string(want) == string(is), "jobs/monitoring/dashboards/%s.json is not what the generator writes; run: make dashboards", b.name)
		require.True(t, json.Valid(is))
	}
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	promtool(t, "check", "rules", files+"rules.yml")
	promtool(t, "test", "rules", files+"rules_test.yml")
}

// TestPromtoolAcceptsTheScrapeConfigs, apart from the service discovery, which Debian's Prometheus
// is built without: package discover reads it.
func TestPromtoolAcceptsTheScrapeConfigs(t *testing.T) {
	for _, name := range []string{"scrape.consul.yml", "scrape.nomad.yml"} {
		var config struct {
			ScrapeConfigs []map[string]any `yaml:"scrape_configs"`
		}
		parse(t, files+name, &config)
		require.NotEmpty(t, config.ScrapeConfigs)
		for _, c := range config.ScrapeConfigs {
			delete(c, "consul_sd_configs")
			delete(c, "nomad_sd_configs")
		}
		raw, err := yaml.Marshal(map[string]any{"scrape_configs": config.ScrapeConfigs, "rule_files": []string{"rules.yml"}})
		require.NoError(t, err)
		dir := t.TempDir()
		rulesFile, err := os.ReadFile(files + "rules.yml")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), rulesFile, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), raw, 0o600))
		promtool(t, "check", "config", filepath.Join(dir, "prometheus.yml"))
	}
}

// TestEveryRuleIsTested: rules_test.yml has a firing and a quiet case for each alert, and a value
// for each recording rule.
func TestEveryRuleIsTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Alerts []struct {
				Alertname string
				Expected  []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
			Expressions []struct {
				Expr    string
				Samples []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	parse(t, files+"rules_test.yml", &file)
	firing, quiet, recorded := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, a := range test.Alerts {
			if len(a.Expected) > 0 {
				firing[a.Alertname] = true
			} else {
				quiet[a.Alertname] = true
			}
		}
		for _, e := range test.Expressions {
			recorded[e.Expr] = recorded[e.Expr] || len(e.Samples) > 0
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			require.True(t, recorded[r.Record], "no value of %s is tested", r.Record)
			continue
		}
		require.True(t, firing[r.Alert], "no test in which %s fires", r.Alert)
		require.True(t, quiet[r.Alert], "no test in which %s is quiet", r.Alert)
	}
}

var (
	alertsSection = regexp.MustCompile(`(?s)\n## Alerts\n.*?(?:\n## |$)`)
	runbook       = regexp.MustCompile(`(?m)^### (\w+)\n\n(.+)`)
)

// TestEveryAlertHasARunbook: each alert links to its paragraph in docs/operations.md, which has a
// paragraph for nothing else.
func TestEveryAlertHasARunbook(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/operations.md")
	require.NoError(t, err)
	headings := map[string]bool{}
	for _, h := range runbook.FindAllStringSubmatch(alertsSection.FindString(string(page)), -1) {
		require.False(t, headings[h[1]], "two paragraphs for %s", h[1])
		headings[h[1]] = true
	}
	alerts := map[string]bool{}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		require.False(t, alerts[r.Alert], "two alerts %s", r.Alert)
		alerts[r.Alert] = true
		require.Equal(t, "docs/operations.md#"+strings.ToLower(r.Alert), r.Annotations["runbook_url"])
		require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
	}
	require.Equal(t, alerts, headings)
}
