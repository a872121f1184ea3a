// Command discover prints the targets of scrape configs, as Prometheus' own service discovery and
// relabelling find them: in the form of http_sd_configs, for a Prometheus that is built without the
// discovery of Consul and Nomad, as Debian's is.
//
//	go run ./discover FILE…
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	_ "github.com/prometheus/prometheus/discovery/consul"
	_ "github.com/prometheus/prometheus/discovery/nomad"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v2"
)

// settle is how long discovery has to find everything.
const settle = 8 * time.Second

func main() {
	targets, err := discover(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "discover:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(targets); err != nil {
		os.Exit(1)
	}
}

// scrape is what discovery needs of a scrape config, and what else ours have.
type scrape struct {
	JobName          string                  `yaml:"job_name"`
	Discovery        discovery.Configs       `yaml:"-"`
	RelabelConfigs   []*relabel.Config       `yaml:"relabel_configs,omitempty"`
	Scheme           string                  `yaml:"scheme,omitempty"`
	HTTPClientConfig config.HTTPClientConfig `yaml:",inline"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *scrape) UnmarshalYAML(unmarshal func(any) error) error {
	*s = scrape{HTTPClientConfig: config.DefaultHTTPClientConfig}
	return discovery.UnmarshalYAMLWithInlineConfigs(s, unmarshal)
}

// target is one target of http_sd_configs with its labels.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func read(files []string) (map[string]scrape, error) {
	jobs := map[string]scrape{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var all struct {
			ScrapeConfigs []scrape `yaml:"scrape_configs"`
		}
		if err := yaml.UnmarshalStrict(raw, &all); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, s := range all.ScrapeConfigs {
			for _, r := range s.RelabelConfigs {
				if err := r.Validate(model.UTF8Validation); err != nil {
					return nil, fmt.Errorf("%s: job %s: %w", file, s.JobName, err)
				}
			}
			jobs[s.JobName] = s
		}
	}
	return jobs, nil
}

func discover(files []string) ([]target, error) {
	jobs, err := read(files)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	registry := client.NewRegistry()
	metrics, err := discovery.CreateAndRegisterSDMetrics(registry)
	if err != nil {
		return nil, err
	}
	manager := discovery.NewManager(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)), registry, metrics, discovery.Updatert(100*time.Millisecond))
	if manager == nil {
		return nil, fmt.Errorf("cannot register the metrics of service discovery")
	}
	configs := map[string]discovery.Configs{}
	for name, s := range jobs {
		configs[name] = s.Discovery
	}
	if err := manager.ApplyConfig(configs); err != nil {
		return nil, err
	}
	go func() { _ = manager.Run() }() // it ends with the context
	var found map[string][]*targetgroup.Group
	for {
		select {
		case found = <-manager.SyncCh():
			continue
		case <-ctx.Done():
		}
		break
	}
	out := []target{}
	for name, groups := range found {
		for _, g := range groups {
			for _, t := range g.Targets {
				if one, keep := resolve(jobs[name], g.Labels, t); keep {
					out = append(out, one)
				}
			}
		}
	}
	return out, nil
}

// resolve gives a target its labels, as a scrape does.
func resolve(s scrape, sets ...model.LabelSet) (target, bool) {
	b := labels.NewBuilder(labels.EmptyLabels())
	b.Set(model.JobLabel, s.JobName)
	for _, set := range sets {
		for name, value := range set {
			b.Set(string(name), string(value))
		}
	}
	if !relabel.ProcessBuilder(b, s.RelabelConfigs...) {
		return target{}, false
	}
	one := target{Targets: []string{b.Get(model.AddressLabel)}, Labels: map[string]string{}}
	b.Range(func(l labels.Label) {
		if len(l.Name) < 2 || l.Name[:2] != "__" {
			one.Labels[l.Name] = l.Value
		}
	})
	return one, true
}
