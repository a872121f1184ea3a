package main

import (
	"testing"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

var files = []string{"../../../jobs/monitoring/scrape.consul.yml", "../../../jobs/monitoring/scrape.nomad.yml"}

// TestScrapeConfigs: Prometheus' own service discovery takes the files, and relabelling gives each
// target its address, its job and an engine the name of its replica.
func TestScrapeConfigs(t *testing.T) {
	jobs, err := read(files)
	require.NoError(t, err)
	for _, c := range []struct {
		job    string
		labels model.LabelSet
		want   target
		drop   bool
	}{
		{"remuda-gateway", model.LabelSet{"__address__": "10.0.0.1:8080", "__meta_consul_service_metadata_operator_port": "4752"},
			target{[]string{"10.0.0.1:4752"}, map[string]string{"job": "remuda-gateway"}}, false},
		{"remuda-engine", model.LabelSet{"__address__": "10.0.0.2:20001", "__meta_consul_service_metadata_model": "llama:8b", "__meta_consul_service_metadata_variant": "h100",
			"__meta_consul_service_metadata_replica": "7f3a", "__meta_consul_service_metadata_role": "shadow"},
			target{[]string{"10.0.0.2:20001"}, map[string]string{"job": "remuda-engine", "replica": "llama:8b:h100:7f3a", "role": "shadow"}}, false},
		{"remuda-nomad", model.LabelSet{"__address__": "10.0.0.2:20002", "__meta_nomad_service": "remuda-lockd"},
			target{[]string{"10.0.0.2:20002"}, map[string]string{"job": "remuda-lockd"}}, false},
		{"remuda-nomad", model.LabelSet{"__address__": "10.0.0.2:20003", "__meta_nomad_service": "postgres"}, target{}, true},
	} {
		got, keep := resolve(jobs[c.job], c.labels)
		require.Equal(t, !c.drop, keep)
		require.Equal(t, c.want, got)
	}
}
