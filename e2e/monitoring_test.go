//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/loopback"
	"remuda/jobs"
)

// monitoringDir has the files that this test loads into a real Prometheus.
const monitoringDir = "../jobs/monitoring"

// unseen are metrics of the rules and dashboards that this cluster cannot have, by what they need.
// A test of each daemon has them.
var unseen = map[string]string{
	"remuda_gateway_tls_certificate_expires_seconds":    "TLS",
	"remuda_controller_tls_certificate_expires_seconds": "TLS",
	"remuda_autoscaler_predicted_slots":                 "remuda-predictive",
	"remuda_autoscaler_observe_errors_total":            "a controller that does not answer",
	"remuda_autoscaler_state_errors_total":              "a state_dir that cannot be written",
	"remuda_controller_evictions_total":                 "a model that makes room for another",
	"remuda_controller_wake_seconds":                    "a replica that sleeps",
	"remuda_controller_sleep_seconds":                   "a replica that sleeps",
	"remuda_gateway_continuations_total":                "a stream that breaks",
	"remuda_gateway_queue_full_total":                   "a full queue",
	"remuda_gateway_queue_timeouts_total":               "requests that wait too long",
	"remuda_gateway_retries_total":                      "an engine that fails",
	"remuda_gateway_retry_budget_spent_total":           "engines that fail",
	"remuda_gateway_upstream_errors_total":              "an engine that fails",
	"remuda_device_unhealthy_info":                      "a GPU that is out of order",
	"remuda_lockd_refusals_total":                       "a client that makes a mistake",
	"remuda_device_clocks_throttled":                    "NVML", "remuda_device_nvlink_received_bytes_total": "NVML", "remuda_device_nvlink_sent_bytes_total": "NVML",
	"remuda_device_nvml_faults_total": "NVML", "remuda_device_pcie_received_bytes_total": "NVML", "remuda_device_pcie_sent_bytes_total": "NVML",
	"remuda_device_remapped_rows_correctable": "NVML", "remuda_device_remapped_rows_uncorrectable": "NVML",
	"remuda_device_uncorrectable_errors": "NVML", "remuda_device_xid_total": "NVML",
	"remuda_device_core_clock_hertz": "NVML", "remuda_device_memory_free_bytes": "NVML", "remuda_device_memory_utilization_ratio": "NVML",
}

var (
	recorded     = regexp.MustCompile(`\w+:remuda_\w+:\w+`)
	metricName   = regexp.MustCompile(`\b(?:remuda_[a-z0-9_]+|vllm:[a-z0-9_]+)`)
	metricRow    = regexp.MustCompile("(?m)^\\| `([a-z0-9_:]+)` \\| (?:counter|gauge|histogram) \\| ([^|]*)\\|")
	labelName    = regexp.MustCompile("`([a-z_]+)`")
	seriesSuffix = regexp.MustCompile(`_(bucket|sum|count)$`)
	deviceListen = regexp.MustCompile(`metrics\s*= "([^"]+)"`)
)

// monitored loads the scrape configs, rules and dashboards of jobs/monitoring into a Prometheus
// beside the cluster, which has a model under load, a pair with a failover and a key with a budget.
// Each metric is exported, with the labels of the reference and no others; each rule and each
// query of a dashboard works.
func monitored(t *testing.T, c *promCluster) {
	dir := dataDir(t)
	remuda := func(args ...string) error {
		cmd := exec.Command(binary(t, "remuda"), args...)
		cmd.Env = append(os.Environ(), "REMUDA_ADDR="+c.info.Controller)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("remuda %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	for _, name := range []string{jobs.DemoModel, "failover.nomad.hcl"} {
		raw, err := jobs.Files.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	require.NoError(t, remuda("key", "create", "team", "-tokens-per-day", "1000000"))
	require.NoError(t, remuda("model", "apply", filepath.Join(dir, jobs.DemoModel)))
	pair := c.engine("demo")
	// There may be no standby yet.
	eventually(t, time.Minute, "a drill", func() error { return remuda("failover", pair.Name.String(), "-drill") })

	prom := c.monitoringPrometheus(t, dir)
	queries := dashboardQueries(t)
	rules, err := os.ReadFile(monitoringDir + "/rules.yml")
	require.NoError(t, err)
	used := map[string]bool{}
	text := strings.Join(slices.Collect(maps.Keys(queries)), "\n") + "\n" + expressions(string(rules))
	for _, m := range metricName.FindAllString(recorded.ReplaceAllString(text, ""), -1) {
		used[m] = true
	}
	require.Greater(t, len(used), 80)
	reference := referenceLabels(t)
	eventually(t, 2*time.Minute, "all metrics in Prometheus", func() error {
		var missing []string
		for m := range used {
			live, err := prom.labels(m)
			if err != nil {
				return err
			}
			if len(live) == 0 && unseen[seriesSuffix.ReplaceAllString(m, "")] == "" {
				missing = append(missing, m)
			}
		}
		if len(missing) > 0 {
			slices.Sort(missing)
			return fmt.Errorf("not exported: %s", strings.Join(missing, " "))
		}
		return nil
	})
	for m := range used {
		live, err := prom.labels(m)
		require.NoError(t, err)
		want, known := reference[m]
		if !known {
			want = reference[seriesSuffix.ReplaceAllString(m, "")]
		}
		require.NotNil(t, want, m)
		for l := range live {
			require.Truef(t, want[l], "%s has a label %s, and the reference does not: %v", m, l, want)
		}
	}
	for q, of := range queries {
		_, err := prom.query(q)
		if err != nil {
			require.ErrorContains(t, err, "there is no series", "%s: %s", of, q)
		}
	}
	prom.rulesWork(t)
}

// expressions are the expressions of a file of rules.
func expressions(rules string) string {
	var out []string
	for line := range strings.Lines(rules) {
		if _, expr, ok := strings.Cut(line, " expr: "); ok {
			out = append(out, expr)
		}
	}
	return strings.Join(out, "")
}

// monitoringPrometheus starts a Prometheus with the files. Its targets are found by the service
// discovery of Prometheus itself, which Debian's is built without.
func (c *promCluster) monitoringPrometheus(t *testing.T, dir string) *promServer {
	config, err := os.ReadFile(filepath.Join(c.info.DataDir, "config", "nomad-client.hcl"))
	require.NoError(t, err)
	device := deviceListen.FindSubmatch(config)
	require.NotNil(t, device, "%s", config)
	var files []string
	for _, name := range []string{"scrape.consul.yml", "scrape.nomad.yml"} {
		raw, err := os.ReadFile(filepath.Join(monitoringDir, name))
		require.NoError(t, err)
		text := strings.NewReplacer("127.0.0.1:8500", c.info.Consul, "http://127.0.0.1:4646", c.info.Nomad).Replace(string(raw))
		for _, address := range []string{string(device[1]), c.metrics} {
			text = strings.Replace(text, "targets: []", fmt.Sprintf("targets: [%q]", address), 1)
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		files = append(files, path)
	}
	discover := exec.Command("go", append([]string{"run", "./discover"}, files...)...)
	discover.Dir = "../tools/monitoring"
	var problems bytes.Buffer
	discover.Stderr = &problems
	targets, err := discover.Output()
	require.NoError(t, err, "%s", problems.String())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(targets)
	}))
	t.Cleanup(server.Close)
	rules, err := filepath.Abs(monitoringDir + "/rules.yml")
	require.NoError(t, err)
	address, path := loopback.Free(t), filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `global:
  scrape_interval: 2s
  scrape_timeout: 2s
  evaluation_interval: 2s
rule_files: [%q]
scrape_configs:
  - job_name: discovered
    http_sd_configs:
      - url: %q
`, rules, server.URL), 0o600))
	p := &promServer{url: "http://" + address, plainProcess: plainStart(t, toolPath(t, "prometheus"), "--config.file="+path,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)}
	p.ready()
	return p
}

// dashboardQueries are the queries of all dashboards, by what they show, as Grafana sends them.
func dashboardQueries(t *testing.T) map[string]string {
	files, err := filepath.Glob(monitoringDir + "/dashboards/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	queries := map[string]string{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		require.NoError(t, json.Unmarshal(raw, &board))
		for _, p := range board.Panels {
			for _, q := range p.Targets {
				query := strings.NewReplacer("$__rate_interval", "30s", "$model", ".*", "$gpu", ".*").Replace(q.Expr)
				queries[query] = filepath.Base(file) + ": " + p.Title
			}
		}
	}
	return queries
}

// referenceLabels are the labels of each metric in docs/reference/metrics.md, with those of scrapes.
func referenceLabels(t *testing.T) map[string]map[string]bool {
	raw, err := os.ReadFile("../docs/reference/metrics.md")
	require.NoError(t, err)
	all := map[string]map[string]bool{}
	for _, row := range metricRow.FindAllStringSubmatch(string(raw), -1) {
		all[row[1]] = map[string]bool{"__name__": true, "job": true, "instance": true, "le": true}
		for _, l := range labelName.FindAllStringSubmatch(row[2], -1) {
			all[row[1]][l[1]] = true
		}
		if strings.HasPrefix(row[1], "vllm:") {
			all[row[1]]["replica"], all[row[1]]["role"] = true, true
		}
	}
	return all
}

// labels returns the labels of a metric's series, none without series.
func (p *promServer) labels(metric string) (map[string]bool, error) {
	since := strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
	body, err := fetch(p.url + "/api/v1/series?" + url.Values{"match[]": {metric}, "start": {since}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct{ Data []map[string]string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, body)
	}
	names := map[string]bool{}
	for _, series := range answer.Data {
		for l := range series {
			names[l] = true
		}
	}
	return names, nil
}

// rulesWork requires that each rule was evaluated without an error, and that no alert of a healthy
// cluster fires for what it has: a leader, answers, a pair with a standby.
func (p *promServer) rulesWork(t *testing.T) {
	eventually(t, time.Minute, "all rules to be evaluated", func() error {
		body, err := fetch(p.url + "/api/v1/rules")
		if err != nil {
			return err
		}
		var answer struct {
			Data struct {
				Groups []struct {
					Rules []struct{ Name, Health, LastError string }
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			return err
		}
		n := 0
		for _, g := range answer.Data.Groups {
			for _, r := range g.Rules {
				n++
				if r.Health != "ok" {
					return fmt.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		if n < 30 {
			return fmt.Errorf("%d rules", n)
		}
		return nil
	})
	for query, want := range map[string]float64{
		`count(ALERTS{alertname="ControllerWithoutLeader",alertstate="firing"}) or vector(0)`: 0,
		`count(ALERTS{alertname="GPUUnhealthy",alertstate="firing"}) or vector(0)`:            0,
		`count(up{job=~"remuda-.+"} == 1) > bool 9`:                                           1,
		`count(count by (job) (up{job=~"remuda-.+"} == 1))`:                                   8,
		`max(model:remuda_controller_replicas_serving:sum{model="demo"})`:                     1,
		`max(remuda_controller_key_budget_used_ratio{key="team"}) or vector(9)`:               0,
	} {
		// Rules are evaluated in turns: a recorded one may be older than the first scrapes.
		eventually(t, time.Minute, query, func() error {
			got, err := p.query(query)
			if err == nil && got != want {
				err = fmt.Errorf("got %v, want %v", got, want)
			}
			return err
		})
	}
}
