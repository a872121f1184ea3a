// Package gpu simulates the GPUs of a node for the device plugin, so that
// laptops, tests and benchmarks have GPUs to place models on.
//
// It guarantees that the same configuration gives the same GPUs, UUIDs
// included, on every start. What it reports as their load is real: the CPU
// time of the processes that were given the GPU, and the device memory that engines and
// the GPU memory service hold of it; not what an engine that sleeps keeps in host memory. A state file makes a
// GPU sick or absent while the plugin runs; a state file that cannot be read
// or understood changes nothing until it can be.
package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/vram"
)

// Config describes the simulated GPUs of a node.
type Config struct {
	// Logger gets a line when the state file changes or turns bad. Required.
	Logger hclog.Logger
	// Blocks are the simulate blocks. Their GPUs are numbered through in order.
	Blocks []deviceplugin.Simulate
	// DefaultSeats is how many seats a GPU offers where its block is silent.
	DefaultSeats int
	// Seed varies the UUIDs from node to node; see UUID.
	Seed string
	// StateFile is the path of the state file, empty for none. It need not exist.
	StateFile string
	// MemoryDir is where the memory of the GPUs is counted (package vram). Required.
	MemoryDir string
	// ProcDir is where processes are looked up; /proc if empty.
	ProcDir string
	// Clock is time.Now if nil.
	Clock func() time.Time
}

// Source is a node's simulated GPUs. It is safe for concurrent use.
type Source struct {
	log    hclog.Logger
	path   string
	gpus   []deviceplugin.GPU
	memory string // the directory

	// mu guards the state file's last content and meaning.
	mu sync.Mutex
	// content is what the file held when it was last read, good or bad; nil
	// where there was no file. trouble is why it could not be used.
	content []byte
	trouble string
	state   state // the last good one

	// scanMu is held through a scan of the processes.
	scanMu  sync.Mutex
	scanner scanner
	cached  map[string]deviceplugin.Sample
}

var _ deviceplugin.Source = (*Source)(nil)

// minScan is the shortest time between two scans: below it CPU times, which
// the kernel counts in hundredths of a second, say nothing.
const minScan = 50 * time.Millisecond

// New makes the GPUs. Its error joins one error for each bad field of a block.
func New(cfg Config) (*Source, error) {
	gpus, err := build(cfg.Blocks, cfg.DefaultSeats, cfg.Seed)
	if cfg.Logger == nil {
		err = errors.Join(errors.New("simulated GPUs: Logger is missing"), err)
	}
	if err != nil {
		return nil, err
	}
	if cfg.ProcDir == "" {
		cfg.ProcDir = "/proc"
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if err := vram.MakeDir(cfg.MemoryDir); err != nil {
		return nil, fmt.Errorf("sim_dir: %w", err)
	}
	for _, g := range gpus {
		if err := vram.Create(cfg.MemoryDir, g.UUID, g.MemoryMiB<<20); err != nil {
			return nil, fmt.Errorf("sim_dir: %w", err)
		}
	}
	return &Source{
		log:     cfg.Logger.Named("sim"),
		path:    cfg.StateFile,
		gpus:    gpus,
		memory:  cfg.MemoryDir,
		scanner: scanner{procDir: cfg.ProcDir, clock: cfg.Clock},
	}, nil
}

// GPUs lists the simulated GPUs as the state file wants them now. It never
// fails.
func (s *Source) GPUs(context.Context, ...string) ([]deviceplugin.GPU, error) {
	st := s.currentState()
	out := make([]deviceplugin.GPU, 0, len(s.gpus))
	for _, g := range s.gpus {
		gs := st.GPUs[g.UUID]
		if gs.Absent {
			continue
		}
		g.Unhealthy = gs.Unhealthy
		out = append(out, g)
	}
	return out, nil
}

// currentState reads the state file if it has changed and returns the last
// good state.
func (s *Source) currentState() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path == "" {
		return s.state
	}
	content, err := readStateFile(s.path)
	if err != nil {
		s.complain(err)
		return s.state
	}
	if s.trouble == "" && bytes.Equal(content, s.content) && (content == nil) == (s.content == nil) {
		return s.state
	}
	var next state
	if content != nil {
		if next, err = parseState(content, s.simulates); err != nil {
			s.content = content
			s.complain(err)
			return s.state
		}
	}
	s.content, s.state, s.trouble = content, next, ""
	s.log.Info("state file taken", "path", s.path, "exists", content != nil, "gpus_named", len(next.GPUs))
	return s.state
}

// complain logs why the state file cannot be used, once for each reason.
func (s *Source) complain(err error) {
	if msg := err.Error(); msg != s.trouble {
		s.trouble = msg
		s.log.Warn("state file cannot be used, the last good state stays", "path", s.path, "error", err)
	}
}

func (s *Source) simulates(uuid string) bool {
	for _, g := range s.gpus {
		if g.UUID == uuid {
			return true
		}
	}
	return false
}

// Samples measures the processes that live on each GPU. GPUs that are absent
// have no sample. Calls in quick succession share one measurement.
func (s *Source) Samples(ctx context.Context) (map[string]deviceplugin.Sample, error) {
	present, err := s.GPUs(ctx)
	if err != nil {
		return nil, err
	}
	s.scanMu.Lock()
	defer s.scanMu.Unlock()
	if s.cached == nil || s.scanner.clock().Sub(s.scanner.lastAt) >= minScan {
		loads, elapsed, err := s.scanner.scan(ctx) // CPU seconds by GPU
		if err != nil {
			return nil, err
		}
		s.cached = make(map[string]deviceplugin.Sample, len(s.gpus))
		for _, g := range s.gpus {
			used, _, err := vram.Used(s.memory, g.UUID)
			if err != nil {
				return nil, err
			}
			s.cached[g.UUID] = sample(g, used, loads[g.UUID], elapsed)
		}
	}
	out := make(map[string]deviceplugin.Sample, len(present))
	for _, g := range present {
		out[g.UUID] = s.cached[g.UUID]
	}
	return out, nil
}
