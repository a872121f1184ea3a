// Package devicetest is for tests of the device plugin: a source of GPUs that
// a test scripts, and plugin configuration encoded the way Nomad does it.
package devicetest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty/msgpack"

	deviceplugin "remuda/device-plugin"
)

// Source answers with what the test last set. It is safe for concurrent use.
type Source struct {
	mu      sync.Mutex
	gpus    []deviceplugin.GPU
	samples map[string]deviceplugin.Sample
	err     error
	hang    bool
	looks   int
}

var _ deviceplugin.Source = (*Source)(nil)

// Set makes the source list gpus from now on.
func (s *Source) Set(gpus ...deviceplugin.GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus, s.err, s.hang = slices.Clone(gpus), nil, false
}

// SetSamples makes the source report samples from now on.
func (s *Source) SetSamples(samples map[string]deviceplugin.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples, s.err = maps.Clone(samples), nil
}

// Fail makes every call fail with err, until the next Set or SetSamples.
func (s *Source) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Hang makes GPUs block until its context is done, until the next Set.
func (s *Source) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = true
}

// Looks is how often GPUs was called.
func (s *Source) Looks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// GPUs lists what was set.
func (s *Source) GPUs(ctx context.Context, _ ...string) ([]deviceplugin.GPU, error) {
	s.mu.Lock()
	s.looks++
	gpus, err, hang := slices.Clone(s.gpus), s.err, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return gpus, err
}

// Samples reports what was set.
func (s *Source) Samples(context.Context) (map[string]deviceplugin.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.samples), s.err
}

// Encode turns the body of a config block into what Nomad sends to SetConfig:
// it decodes the text by the plugin's own schema, defaults included, and
// encodes the value as MessagePack.
func Encode(t testing.TB, schema *hclspec.Spec, body string) []byte {
	t.Helper()
	spec, diags := hclspecutils.Convert(schema)
	fatal(t, "convert the schema", diags)
	file, diags := hclparse.NewParser().ParseHCL([]byte(body), "config.hcl")
	fatal(t, "parse the config", diags)
	value, diags := hcldec.Decode(file.Body, spec, &hcl.EvalContext{})
	fatal(t, "decode the config", diags)
	out, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		t.Fatalf("encode the config: %v", err)
	}
	return out
}

func fatal(t testing.TB, doing string, diags hcl.Diagnostics) {
	t.Helper()
	if diags.HasErrors() {
		t.Fatalf("%s: %v", doing, diags)
	}
}
