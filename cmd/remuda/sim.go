package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/bytesize"
	"remuda/internal/private"
	"remuda/internal/sim"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/weights"
	"remuda/internal/version"
	"remuda/lockd/engine"
)

func (p *program) simVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run a simulated inference engine",
		usage:    "-listen ADDR -model NAME [-weights FILE] [flags]",
		about: `
Serves vLLM's OpenAI API, metrics and sleep mode without a GPU: continuous
batching over a KV cache that really fills up, weights that are really loaded
and checked, and deterministic text. Faults are enabled by flag and, at run
time, with GET, POST and DELETE on /sim/faults. The weights take memory of the
simulated GPUs in $REMUDA_USE_GPUS, else $REMUDA_GPU_UUIDS; POST /sim/gpus moves
a sleeping engine to others. In $REMUDA_SIM_GPU_DIR, which the device plugin sets, the
memory of the GPUs is counted: what does not fit is refused, as by a driver.

Faults (-fault NAME=VALUE, may be repeated; over HTTP {"NAME": VALUE}):
` + fault.Help() + `
Exit codes: 0 stopped, 1 weights missing or damaged, or put to sleep with
requests in flight, 2 wrong usage, 137 crashed on demand.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := sim.DefaultConfig()
			listen := fs.String("listen", "127.0.0.1:8000", "`address` to serve HTTP on; port 0 selects a free one")
			level := fs.String("log-level", "info", "trace, debug, info, warn, error or off")
			fs.StringVar(&cfg.Model, "model", "", "`name` of the model to serve (required)")
			fs.StringVar(&cfg.API, "api", cfg.API, "whose routes to serve: vllm or sglang (sleep, load and health in its form, and no metrics)")
			fs.StringVar(&cfg.APIKey, "api-key", "", "API `key` that requests need where the real engine asks for it (default: with -api vllm $VLLM_API_KEY, else none)")
			ranks := declareSimRanks(fs)
			workers := fs.Bool("workers", false, "hold what is on each GPU in a process of its own, as engines do that shard their weights")
			fs.IntVar(&cfg.MaxNumSeqs, "max-num-seqs", cfg.MaxNumSeqs, "sequences that run at once (the engine's slots)")
			fs.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "maximum length of prompt and answer, in `tokens`")
			fs.IntVar(&cfg.NumGPUBlocks, "num-gpu-blocks", cfg.NumGPUBlocks, "size of the KV cache, in `blocks`")
			fs.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "`tokens` per KV block")
			fs.IntVar(&cfg.MaxBatchedTokens, "max-num-batched-tokens", cfg.MaxBatchedTokens, "maximum `tokens` computed in one step")
			fs.Float64Var(&cfg.Rates.Prefill, "prefill-rate", cfg.Rates.Prefill, "prompt `tokens` per second over all sequences; 0 for no limit")
			fs.Float64Var(&cfg.Rates.Decode, "decode-rate", cfg.Rates.Decode, "`tokens` per second of a sequence that runs alone; 0 for no limit")
			fs.Float64Var(&cfg.Rates.Slowdown, "decode-slowdown", cfg.Rates.Slowdown, "relative slowdown of a decode step with all slots busy; 0.5 takes half as long again")
			fs.DurationVar(&cfg.InitDelay, "init-delay", cfg.InitDelay, "`time` from loaded weights to ready")
			fs.DurationVar(&cfg.DrainTimeout, "drain-timeout", cfg.DrainTimeout, "`time` that running requests have to finish on shutdown")
			fs.DurationVar(&cfg.KeepAlive, "keep-alive-timeout", cfg.KeepAlive, "`time` after which an idle connection is closed")
			fs.DurationVar(&cfg.BodyTimeout, "body-timeout", cfg.BodyTimeout, "`time` limit for receiving a request body")
			fs.Func("max-body", "largest request body (default 64MiB)", func(s string) (err error) {
				cfg.MaxBody, err = bytesize.Parse(s)
				return err
			})
			stamp := fs.Bool("stamp", false, "put the engine's process ID in the system_fingerprint of each event of a chat or a completion")
			fs.Func("fault", "enable a fault, as `NAME=VALUE`", func(s string) (err error) {
				cfg.Faults, err = cfg.Faults.Assign(s)
				return err
			})
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				lvl := hclog.LevelFromString(*level)
				if lvl == hclog.NoLevel {
					return usagef("-log-level %q: must be trace, debug, info, warn, error or off", *level)
				}
				cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: "sim", Level: lvl, Output: p.stderr})
				cfg.Version, cfg.Exit = version.String(), os.Exit
				if cfg.APIKey == "" && cfg.API == sim.APIVLLM {
					cfg.APIKey = os.Getenv("VLLM_API_KEY")
				}
				if *stamp {
					cfg.Stamp = strconv.Itoa(os.Getpid())
				}
				gpus, _ := engine.TaskGPUs()
				if err := ranks.fill(&cfg, gpus, cfg.Model); err != nil {
					return err
				}
				if *workers {
					var err error
					if cfg.Workers, err = ranks.commands(cfg, *level, p.stderr); err != nil {
						return err
					}
				}
				server, err := sim.New(cfg)
				if err != nil {
					return usagef("%v", err)
				}
				ln, err := net.Listen("tcp", *listen)
				if err != nil {
					return fmt.Errorf("listen: %w", err)
				}
				cfg.Logger.Info("listening", "address", ln.Addr().String(), "pid", os.Getpid())
				return server.Run(ctx, ln)
			}
		},
	}
}

func (p *program) simWeightsVerb() verb {
	return verb{
		synopsis: "Create a weights file for the simulated engine",
		usage:    "-size SIZE [-seed N] FILE",
		about: `
Writes a valid safetensors file whose tensors take SIZE bytes, with a digest for
each. An intact file of the same size and seed is kept, so running this again
only reads the file.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			size := fs.String("size", "", "total `size` of the tensors, such as 256MiB (required)")
			seed := fs.Uint64("seed", 1, "selects the content")
			return func(_ context.Context, args []string) error {
				if len(args) != 1 {
					return usagef("expected one FILE, got %d arguments", len(args))
				}
				bytes, err := bytesize.Parse(*size)
				if err != nil {
					return usagef("-size: %v", err)
				}
				spec := weights.Spec{Size: bytes, Seed: *seed}
				if err := spec.Validate(); err != nil {
					return usagef("-size %s: %v", *size, err)
				}
				if err := ownDir(args[0]); err != nil {
					return err
				}
				created, err := weights.Create(args[0], spec)
				if err != nil {
					return err
				}
				what := "unchanged"
				if created {
					what = "written"
				}
				fmt.Fprintf(p.stdout, "%s: %s, %d bytes of weights, seed %d\n", args[0], what, bytes, *seed)
				return nil
			}
		},
	}
}

// ownDir makes the replica's directory in its allocation, if that is the one of the file.
func ownDir(file string) error {
	if filepath.Dir(file) != defaultRecord() {
		return nil
	}
	dir, err := private.Dir(filepath.Dir(file))
	if err != nil {
		return err
	}
	return dir.Close()
}
