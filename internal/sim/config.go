package sim

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/shared"
)

// ExitCrash is the exit code of a crash on demand: that of a process which
// SIGKILL ended.
const ExitCrash = 137

// Real engines whose routes the simulated one has.
const (
	APIVLLM   = "vllm"
	APISGLang = "sglang"
)

// Config says what to simulate.
type Config struct {
	// Model is the one model that is served.
	Model string
	// API is whose routes it has: APIVLLM or APISGLang.
	API string
	// APIKey is the API key that requests need where the real engine asks for it; empty for none.
	APIKey string
	// Weights is the path of a safetensors file; empty for none, which makes
	// sleep and wake changes of state without memory behind them.
	Weights string
	// Shared holds the weights in the GPU memory service; nil for memory of the
	// engine's own.
	Shared *shared.Config
	// GPUs are the UUIDs of the simulated GPUs whose memory the weights take, in equal
	// shares; empty if unknown. MemoryDir is the directory that counts this memory (see package vram);
	// empty: it is not counted and has no limit.
	GPUs      []string
	MemoryDir string
	// Cache and Context are the bytes of the KV cache and of the context on each GPU. A sleeping engine
	// keeps its contexts.
	Cache, Context int64
	// Asleep: the engine sleeps at level 1 when it is ready, and has not had a KV cache before its first wake.
	Asleep bool
	// Teardown is how long the memory is held when the engine ends by itself.
	Teardown time.Duration
	// Workers start a process for each GPU, which has what the engine has there. Then Shared, GPUs,
	// Cache, Context, Asleep and Teardown apply to the workers. Empty: no workers.
	Workers []*exec.Cmd
	// Version is what GET /version answers.
	Version string

	// MaxNumSeqs, NumGPUBlocks, BlockSize, MaxBatchedTokens size the batch and
	// the KV cache as vLLM's flags of the same names do.
	MaxNumSeqs       int
	NumGPUBlocks     int
	BlockSize        int
	MaxBatchedTokens int
	// MaxModelLen limits prompt plus answer, in tokens. The cache must hold
	// one request of that length, or vLLM would not start either.
	MaxModelLen int
	// Rates is the speed; the zero value is as fast as possible.
	Rates engine.Rates

	// InitDelay is the time from loaded weights to ready, where a real engine
	// compiles and captures CUDA graphs.
	InitDelay time.Duration
	// DrainTimeout is how long streams may go on after the context is done.
	DrainTimeout time.Duration
	// KeepAlive is how long an idle connection stays open. vLLM's is 5 s
	// (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), so proxies meet stale connections.
	KeepAlive time.Duration
	// BodyTimeout is how long a request body may take to arrive.
	BodyTimeout time.Duration
	// MaxBody is the largest request body, in bytes.
	MaxBody int64

	// Stamp, if set, is in the system_fingerprint of each event of a chat or a completion.
	Stamp string

	// Faults are the switches to begin with.
	Faults fault.Set
	// Exit ends the process for a crash on demand; it should not return.
	Exit   func(code int)
	Logger hclog.Logger
}

// DefaultConfig is an engine that behaves like a small model on one data-center
// GPU; Model, Version, Exit and Logger are left to the caller.
func DefaultConfig() Config {
	return Config{
		API: APIVLLM,
		// vLLM's default is 256 and more. With 64 a laptop can fill the
		// engine and see it queue; 200 streams need a few replicas
		// or a queue, as on real GPUs.
		MaxNumSeqs: 64,
		// 65,536 tokens of cache: 64 sequences of 1,024 tokens. Longer ones
		// fill it, queue and get preempted.
		NumGPUBlocks: 4096,
		BlockSize:    16, // vLLM's default
		// vLLM's default for online serving before H100; with it a prompt of
		// 8,192 tokens takes four steps, between which others decode.
		MaxBatchedTokens: 2048,
		MaxModelLen:      8192,
		// An 8B model on an A100, roughly: 20 ms between tokens, half as
		// much again when the batch is full.
		Rates:        engine.Rates{Prefill: 16000, Decode: 50, Slowdown: 0.5},
		DrainTimeout: 4 * time.Second, // within Nomad's default kill_timeout of 5 s
		KeepAlive:    5 * time.Second,
		BodyTimeout:  time.Minute,
		MaxBody:      64 << 20,
	}
}

func (c Config) batch() batch.Config {
	return batch.Config{
		MaxSeqs: c.MaxNumSeqs, MaxBatchedTokens: c.MaxBatchedTokens, BlockSize: c.BlockSize, Blocks: c.NumGPUBlocks,
	}
}

func (c Config) validate() error {
	var errs []error
	if strings.TrimSpace(c.Model) == "" {
		errs = append(errs, errors.New("model is empty: want the name that clients ask for"))
	}
	if c.API != APIVLLM && c.API != APISGLang {
		errs = append(errs, fmt.Errorf("API is %q: must be %s or %s", c.API, APIVLLM, APISGLang))
	}
	if c.Shared != nil && c.Weights == "" {
		errs = append(errs, errors.New("weights are to be shared, and there are none: name their file"))
	}
	if c.MaxModelLen < 2 {
		errs = append(errs, fmt.Errorf("max model length is %d tokens: must be at least 2", c.MaxModelLen))
	}
	if room := c.NumGPUBlocks * c.BlockSize; c.NumGPUBlocks > 0 && c.BlockSize > 0 && c.MaxModelLen > room {
		errs = append(errs, fmt.Errorf(
			"max model length is %d tokens, the KV cache holds %d (%d blocks of %d): lower the first or raise the blocks",
			c.MaxModelLen, room, c.NumGPUBlocks, c.BlockSize))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		min   time.Duration
	}{
		{"init delay", c.InitDelay, 0}, {"drain timeout", c.DrainTimeout, 0},
		{"keep-alive timeout", c.KeepAlive, 1}, {"body timeout", c.BodyTimeout, 1}, {"teardown", c.Teardown, 0},
	} {
		if d.value < d.min {
			errs = append(errs, fmt.Errorf("%s is %v: must be at least %v", d.name, d.value, d.min))
		}
	}
	if c.Cache < 0 || c.Context < 0 {
		errs = append(errs, fmt.Errorf("KV cache and context are %d and %d bytes: must be at least 0", c.Cache, c.Context))
	}
	if c.MaxBody < 1 {
		errs = append(errs, fmt.Errorf("max body is %d bytes: must be at least 1", c.MaxBody))
	}
	if c.Exit == nil || c.Logger == nil {
		errs = append(errs, errors.New("Exit and Logger must be set"))
	}
	return errors.Join(errs...)
}
