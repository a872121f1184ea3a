package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

var updateTables = flag.Bool("update-tables", false, "write testdata/tables.golden")

// TestTables compares the tables that scripts may read with testdata/tables.golden:
// headings, order of columns, and how values are written.
// "go test ./cmd/remuda -run TestTables -update-tables" writes the file.
func TestTables(t *testing.T) {
	r := said(t, tableAnswers("m", "v", "1", "2", "gpu-1"))
	var got strings.Builder
	for _, verb := range tableVerbs {
		verb = strings.NewReplacer("MODEL", "m", "REPLICA", "m:v:1").Replace(verb)
		got.WriteString("$ remuda " + verb + "\n" + r.ok(strings.Fields(verb)...) + "\n")
	}
	const file = "testdata/tables.golden"
	if *updateTables {
		require.NoError(t, os.WriteFile(filepath.FromSlash(file), []byte(got.String()), 0o600))
	}
	want, err := os.ReadFile(filepath.FromSlash(file))
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// TestTablesFitATerminal of 80 columns, also with names as long as people give them.
func TestTablesFitATerminal(t *testing.T) {
	const model, variant, first, second = "meta-llama-3.1-70b-chat", "h100-tp4", "718fcccd-2c9d-8c0a-a554-237c1c1cbc8c", "718fcccd-9b1f-8e02-9d3c-0123456789ab"
	r := said(t, tableAnswers(model, variant, first, second, "gpu-node-17"))
	name := model + ":" + variant + ":"
	for _, verb := range tableVerbs {
		verb = strings.NewReplacer("MODEL", model, "REPLICA", name+first).Replace(verb)
		t.Setenv("COLUMNS", "80")
		out := r.ok(strings.Fields(verb)...)
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, "remuda %s\n%s", verb, out)
		}
		t.Setenv("COLUMNS", "")
		whole := r.ok(strings.Fields(verb)...)
		require.Equal(t, words(whole), words(out), "nothing is cut off: remuda %s", verb)
	}
	out := r.ok("replica", "list")
	require.Contains(t, out, name+"718fcccd-2c9 ", "prefixes differ where eight characters do not")
	require.NotContains(t, out, first)
	require.Contains(t, r.ok("replica", "list", "-verbose"), name+first)
	require.Contains(t, r.ok("replica", "status", "718fcccd-2c"), first)
	require.Contains(t, r.do("replica", "status", "718fcccd").errout, "\"718fcccd\" is ambiguous: use a longer prefix of one of\n  "+name+first+"\n  "+name+second)
	require.Contains(t, r.do("replica", "status", "719fcccd").errout, `no replica "719fcccd" (did you mean "718fcccd"?)`)
}

// words are the words of a text without dashes, which stand for empty cells. A word that is longer
// than a line is broken, so that they are one string.
func words(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "-", "")), "")
}

var tableVerbs = []string{
	"acl token list", "agent info", "decision list", "dedicated status", "evict MODEL -to warm", "gateway list", "key list", "key status team", "model history MODEL", "model list", "model status MODEL", "node list", "pipeline list",
	"pool list", "queue list", "queue status MODEL", "raft list-peers", "replica list", "replica status REPLICA", "switch list", "usage",
}

// tableAnswers are answers of a controller with a model of two replicas.
func tableAnswers(modelName, variant, id1, id2, nodeName string) map[string]any {
	const gpu = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	replica1, replica2 := modelName+":"+variant+":"+id1, modelName+":"+variant+":"+id2
	replicas := []api.Replica{
		{
			Name: replica1, Model: modelName, Variant: variant, ID: id1, Version: 2, Current: true, Tier: "HOT", Status: "serving", Goal: "run", Node: "11111111-0000", NodeName: nodeName,
			Seats: []string{gpu + "#0"}, Memory: map[string]int64{gpu: 40 << 30}, HostMemory: 20 << 30, SleepMemory: 1 << 30, Load: &api.Load{InFlight: 2, Busy: true, Answered: 80, Failed: 12, FailedInARow: 5},
			OutOfUse: "GPU " + gpu + " of node gpu-1 is cordoned: ops: it is hot",
		},
		{
			Name: replica2, Model: modelName, Variant: variant, ID: id2, Version: 1, Tier: "HOT", Status: "draining", Goal: "warm", Node: "11111111-0000", NodeName: nodeName,
			Seats: []string{gpu + "#1"}, MakesRoomFor: "other", Canary: true,
		},
	}
	model := api.Model{
		Name: modelName, Min: 1, Max: 4, Priority: 50, Management: "full", Replicas: 2, Target: 2, Hash: "h", Version: 2, StableVersion: 1, KeepWarm: 1, MinAvailable: 1, TTFTP95: api.Duration(2 * time.Second), ITLP95: api.Duration(50 * time.Millisecond),
		Variants: []api.Variant{{Name: variant, GPUModel: "H100", GPUs: 1, Memory: 40 << 30, HostMemory: 20 << 30, Weights: 16 << 30, Cost: 2, Slots: 8, Engine: "vllm", Hash: "h"}},
		Rollouts: map[string]api.Rollout{variant: {Status: "canary", Version: 2}},
		Desired:  []api.Share{{Variant: variant, Replicas: 1}, {Pool: "east", Variant: variant, Replicas: 1}},
	}
	decisions := []api.Decision{{Model: modelName, Replica: replica1, Kind: "place", Reason: "placed on node gpu-1", Details: map[string]string{"variant": "v"}}}
	queue := api.Queue{Model: modelName, State: api.QueueBusy, Waiting: 3, InFlight: 2, CompletedPerSecond: 1.5}
	node := api.Node{
		ID: "11111111-0000", Name: nodeName, Datacenter: "dc1", Pool: "default", Ready: true, HostMemory: 100 << 30, WarmBudget: 50 << 30, CPU: 3000,
		GPUs: []api.GPU{{UUID: gpu, Model: "H100", Memory: 80 << 30, FreeMemory: 40 << 30, HotMemory: 40 << 30, Healthy: true, Seats: []api.Seat{{ID: gpu + "#0", Replica: replica1}, {ID: gpu + "#1"}}}},
	}
	key := api.Key{
		Name: "team", KeyLimits: api.KeyLimits{Weight: 2, Priority: 5, MaxPriority: 7, RequestsPerMinute: 60, TokensPerMinute: 1000, Concurrency: 4, TokensPerDay: 1000},
		Secrets: []api.KeySecret{{Prefix: "sk-remuda-Ab12"}, {Prefix: "sk-remuda-Cd34"}},
	}
	return map[string]any{
		"GET /v1/acl/tokens":                       []api.Token{{Accessor: "a1", Role: "operator", Name: "ops"}},
		"GET /v1/agent/self":                       api.AgentSelf{ID: "s1", Version: "1.0.0", Address: "10.0.0.1:4751", Leader: true, KnownLeader: true, Index: 7, Gateways: []api.Gateway{{Name: "gw", Index: 7}}},
		"GET /v1/decisions":                        decisions,
		"GET /v1/dedicated":                        api.Dedicated{Source: "operator", Models: map[string]int{modelName: 2}},
		"PUT /v1/evict":                            api.EvictResponse{Replicas: []api.Eviction{{Name: replica1, Node: "11111111-0000", From: "HOT", To: "WARM", FreedGPUs: 1, FreedBytes: 39 << 30}, {Name: replica2, From: "HOT", Error: "unchanged: already leaving (draining)"}}},
		"GET /v1/gateways":                         []api.Gateway{{Name: "gw", Index: 7, InFlight: 2, Waiting: 3}},
		"GET /v1/keys":                             []api.Key{key, {Name: api.KeyAnonymous, KeyLimits: api.KeyLimits{Weight: 0.5, Priority: 0, MaxPriority: 0, Models: []string{"m", "llama*"}}}},
		"GET /v1/key/team":                         api.KeyStatus{Key: key, Used: api.TokensUsed{Day: "2026-01-02", Today: 120, ThisMonth: 3456}},
		"GET /v1/usage":                            api.UsageReport{Since: "2025-12-27", Until: "2026-01-02", Rows: []api.UsageRow{{Key: "a", Usage: api.Usage{Requests: 2, PromptTokens: 70, CachedTokens: 10, CompletionTokens: 30, EstimatedTokens: 5}}, {Key: "b", Usage: api.Usage{Requests: 1, PromptTokens: 7}}}, Total: api.Usage{Requests: 3, PromptTokens: 77, CachedTokens: 10, CompletionTokens: 30, EstimatedTokens: 5}},
		"GET /v1/models":                           []api.ModelSummary{{Name: modelName, Variants: []string{variant}, Min: 1, Max: 4, Replicas: 2, Target: 2, Management: "full", Counts: api.Counts{Hot: 1, Starting: 1}}},
		"GET /v1/model/" + modelName:               api.ModelStatus{Model: model, Counts: api.Counts{Hot: 1, Leaving: 1}, VariantCounts: map[string]api.Counts{variant: {Hot: 1}}, Unplaceable: map[string]string{variant: "no GPUs"}, Replicas: replicas, Decisions: decisions, StatusDescription: "1 of 2 replicas serve.", Queue: &queue},
		"GET /v1/model/" + modelName + "/versions": []api.Version{{Number: 2, Current: true, Replicas: 1, Changes: []api.Change{{Path: "max"}, {Path: "variant \"v\": memory"}}}, {Number: 1, Stable: true, Replicas: 1}},
		"GET /v1/nodes":                            []api.Node{node},
		"GET /v1/pipelines":                        []api.Pipeline{{Name: "p", Models: []string{"m", "x"}, Missing: []string{"x"}, ModifyIndex: 5}},
		"GET /v1/pools":                            []api.Pool{{Management: "full", Price: 1, Known: true, Nodes: 1, GPUs: 1, Memory: 80 << 30, FreeMemory: 40 << 30}, {Name: "east", Management: "manual", Price: 2, Error: "connection refused"}},
		"GET /v1/queues":                           []api.Queue{queue},
		"GET /v1/queue/" + modelName:               api.QueueStatus{Queue: queue},
		"GET /v1/replicas":                         replicas,
		"GET /v1/replica/" + replica1:              replicas[0],
		"GET /v1/switches":                         []api.Switch{{Name: "pause-reconcile", Value: "true"}},
		"GET /v1/operator/raft/configuration":      api.RaftConfiguration{Servers: []api.RaftServer{{ID: "s1", Address: "10.0.0.1:4751", Leader: true, Voter: true, FeatureLevel: 1}, {ID: "s2", Address: "10.0.0.2:4751", PromotionBlocked: "it was healthy for 3s: must be for 10s"}}},
	}
}
