package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/sim"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/rank"
	"remuda/internal/vram"
)

// simWorkerVerbName is the hidden verb of a simulated engine's worker, which the engine starts.
const simWorkerVerbName = "sim-worker"

// simRanks are the flags for what a simulated engine has on its GPUs.
type simRanks struct {
	weights        string
	gms            simGMS
	cache, context sizeFlag
	asleep         bool
	teardown       time.Duration
}

func declareSimRanks(fs *flag.FlagSet) *simRanks {
	r := &simRanks{gms: simGMS{gmsMemory: gmsMemory{backend: "host"}, lock: cmp.Or(os.Getenv(weightsLockEnv), lockRWOrRO), timeout: 30 * time.Second}}
	fs.StringVar(&r.weights, "weights", "", "safetensors `file` to load (default: a model without weights)")
	r.gms.declare(fs)
	fs.Var(&r.cache, "kv-memory", "memory of the KV cache on each GPU, such as 2GiB; a sleep gives it back and a wake takes it again, or fails")
	fs.Var(&r.context, "context-memory", "memory of the context on each GPU, which a sleeping engine keeps")
	fs.BoolVar(&r.asleep, "start-asleep", false, "load the weights and sleep: the KV cache is made at the first wake")
	fs.DurationVar(&r.teardown, "teardown", 0, "`time` that the memory is held for when the engine ends by itself, as a driver takes its time")
	return r
}

// fill puts the flags into a config.
func (r *simRanks) fill(cfg *sim.Config, gpus []string, model string) (err error) {
	cfg.Weights, cfg.GPUs, cfg.MemoryDir = r.weights, gpus, os.Getenv(vram.EnvDir)
	cfg.Cache, cfg.Context, cfg.Asleep, cfg.Teardown = int64(r.cache), int64(r.context), r.asleep, r.teardown
	cfg.Shared, err = r.gms.config(model)
	return err
}

// commands are those of the workers, one for each GPU.
func (r *simRanks) commands(cfg sim.Config, level string, log io.Writer) ([]*exec.Cmd, error) {
	if len(cfg.GPUs) == 0 {
		return nil, usagef("-workers: there are no GPUs: neither $REMUDA_USE_GPUS nor $REMUDA_GPU_UUIDS is set")
	}
	if cfg.Shared != nil && len(cfg.Shared.Sockets) != len(cfg.GPUs) {
		return nil, usagef("-workers: %d sockets of -gms-socket for %d GPUs: want one for each", len(cfg.Shared.Sockets), len(cfg.GPUs))
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program's path: %w", err)
	}
	var out []*exec.Cmd
	for i, gpu := range cfg.GPUs {
		args := []string{simWorkerVerbName, "-rank", strconv.Itoa(i), "-of", strconv.Itoa(len(cfg.GPUs)), "-gpu", gpu, "-log-level", level,
			"-kv-memory", r.cache.String(), "-context-memory", r.context.String(), "-start-asleep=" + strconv.FormatBool(r.asleep), "-teardown", r.teardown.String()}
		if r.weights != "" {
			args = append(args, "-weights", r.weights)
		}
		if cfg.Shared != nil {
			args = append(args, "-gms-socket", cfg.Shared.Sockets[i], "-gms-backend", r.gms.backend, "-cuda-library", r.gms.cudaLibrary, "-gms-lock", r.gms.lock,
				"-verify", r.gms.verify, "-gms-timeout", r.gms.timeout.String(), "-gms-wait", r.gms.wait.String())
		}
		cmd := exec.Command(program, args...)
		cmd.Stdout, cmd.Stderr = log, log
		out = append(out, cmd)
	}
	return out, nil
}

// simWorkerVerb is started by a simulated engine, never by hand.
func (p *program) simWorkerVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Hold what a simulated engine has on one GPU",
		usage:    "[flags]",
		about:    "Started by 'remuda sim -workers', never by hand.",
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			ranks := declareSimRanks(fs)
			number := fs.Int("rank", 0, "`number` of the worker, from 0")
			of := fs.Int("of", 1, "how many there are")
			gpu := fs.String("gpu", "", "`UUID` of the GPU")
			level := fs.String("log-level", "info", "trace, debug, info, warn, error or off")
			return func(_ context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				// It ends with its engine, which may drain first.
				signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
				var cfg sim.Config
				if err := ranks.fill(&cfg, []string{*gpu}, ""); err != nil {
					return err
				}
				at, err := ranks.gms.place(*gpu, cfg.MemoryDir)
				if err != nil {
					return err
				}
				return rank.RunWorker(context.Background(), rank.Config{
					Weights: cfg.Weights, Shared: cfg.Shared, At: at, Rank: memory.Rank{Number: *number, Of: *of},
					Cache: cfg.Cache, Context: cfg.Context, Asleep: cfg.Asleep,
					Logger: hclog.New(&hclog.LoggerOptions{Name: fmt.Sprintf("sim.worker-%d", *number), Level: hclog.LevelFromString(*level), Output: p.stderr}),
				}, ranks.teardown)
			}
		},
	}
}
