package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/keeper"
	"remuda/internal/bytesize"
)

// gmsSocketDirEnv names the directory of the sockets, as Dynamo's clients know it.
const gmsSocketDirEnv = "GMS_SOCKET_DIR"

// gmsServeVerbName is the hidden verb of the service, which the keeper starts.
const gmsServeVerbName = "gms-serve"

func (p *program) gmsVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run the GPU memory service",
		usage:    "-gpu UUID[,UUID…] -backend host|cuda [flags]",
		about: `Owns GPU memory that several engines share and that outlives them, in the protocol of NVIDIA
Dynamo's GPU Memory Service. Each GPU and tag has one lock and one layout. Tags come with their
engines, on the Unix socket <socket-dir>/gms.sock; the tags "weights" and "kv_cache" of each
GPU also have the sockets <socket-dir>/gms_<GPU UUID>_weights.sock and _kv_cache.sock, as Dynamo's
clients know them. Engines of the same user (and root) can connect.

The host backend emulates GPUs with shared memory.

This program is the keeper: it holds a descriptor of every committed allocation, runs the
service as a child process, and starts it again with the same layouts whenever it ends or
hangs. On SIGHUP it replaces the service and itself by the program that is at its path now, and
loses no committed layout. On SIGTERM it ends with the service, and the memory is free.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			o := declareGMS(fs)
			hang := fs.Duration("hang-timeout", keeper.DefaultConfig().Hang, "how long the service may be unresponsive before it is killed and started again")
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				return p.keepGMS(ctx, fs, o.logLevel, *hang)
			}
		},
	}
}

// keepGMS runs the keeper. The service gets the same flags.
func (p *program) keepGMS(ctx context.Context, fs *flag.FlagSet, logLevel string, hang time.Duration) error {
	cfg := keeper.DefaultConfig()
	if hang <= 0 {
		return usagef("-hang-timeout is %s: must be more than 0", hang)
	}
	cfg.Hang, cfg.Ping = hang, min(cfg.Ping, hang/2)
	cfg.Stdout, cfg.Stderr = p.stdout, p.stderr
	cfg.Args, cfg.ServiceArgs = []string{"gms"}, []string{gmsServeVerbName}
	fs.Visit(func(f *flag.Flag) {
		arg := "-" + f.Name + "=" + f.Value.String()
		cfg.Args = append(cfg.Args, arg)
		if f.Name != "hang-timeout" {
			cfg.ServiceArgs = append(cfg.ServiceArgs, arg)
		}
	})
	var err error
	if cfg.Logger, err = p.logger("gms-keeper", logLevel); err != nil {
		return err
	}
	if cfg.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("find the program's path: %w", err)
	}
	hup := make(chan os.Signal, 1)
	cfg.Rearm = func() { signal.Notify(hup, syscall.SIGHUP) }
	cfg.Rearm()
	defer signal.Stop(hup)
	cfg.Upgrade = hup
	k, err := keeper.New(cfg)
	if err != nil {
		return err
	}
	err = k.Run(ctx)
	var ended *keeper.ExitError
	if errors.As(err, &ended) && ended.Code == exitUsage {
		return exitError{exitUsage} // it has said why
	}
	return err
}

// gmsServeVerb is started by the keeper, never by hand.
func (p *program) gmsServeVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Serve GPU memory for a keeper",
		usage:    "[flags]",
		about:    "Started by 'remuda gms' with the same flags, never by hand.",
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			o := declareGMS(fs)
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				signal.Ignore(syscall.SIGHUP)
				var err error
				if o.cfg.Logger, err = p.logger("gms", o.logLevel); err != nil {
					return err
				}
				fs.Visit(func(f *flag.Flag) {
					if strings.HasPrefix(f.Name, "host-") {
						o.host.given = append(o.host.given, "-"+f.Name)
					}
				})
				err = o.run(ctx)
				var usage usageError
				if errors.As(err, &usage) { // of the verb that people know
					fmt.Fprintf(p.stderr, "remuda gms: %v\nRun 'remuda gms -h' for usage.\n", err)
					return exitError{exitUsage}
				}
				return err
			}
		},
	}
}

// declareGMS declares the flags of the service.
func declareGMS(fs *flag.FlagSet) *gmsOptions {
	o := &gmsOptions{cfg: gms.DefaultConfig(), host: hostOptions{granularity: host.DefaultGranularity}}
	o.cfg.SocketDir = os.Getenv(gmsSocketDirEnv)
	if o.cfg.SocketDir == "" {
		o.cfg.SocketDir = os.TempDir()
	}
	fs.StringVar(&o.cfg.SocketDir, "socket-dir", o.cfg.SocketDir, "`directory` of the sockets (default: $"+gmsSocketDirEnv+", else the system's temporary directory)")
	fs.Var(&o.gpus, "gpu", "`UUID`s of the GPUs, separated by commas; may be repeated. With the host backend, UUID=SIZE sets the GPU's capacity (default: all GPUs of the CUDA driver)")
	fs.StringVar(&o.backend, "backend", "", "`host` or cuda (required)")
	fs.StringVar(&o.cudaLibrary, "cuda-library", "", "`path` of the CUDA driver's library (default: found by the system)")
	fs.Var(&o.host.capacity, "host-capacity", "emulated memory of each GPU, such as 80GiB; 0 for no limit")
	fs.Var(&o.host.granularity, "host-granularity", "allocation sizes are rounded up to a multiple of this")
	fs.DurationVar(&o.host.slowRelease, "host-slow-release", 0, "added delay of each release of an allocation")
	fs.StringVar(&o.host.dir, "host-gpu-dir", "", "`directory` where the memory of the simulated GPUs is counted, sim_dir of the device plugin")
	fs.DurationVar(&o.cfg.OOMRetry, "oom-retry", o.cfg.OOMRetry, "retry interval of an allocation without room")
	fs.DurationVar(&o.cfg.OOMLimit, "oom-limit", o.cfg.OOMLimit, "how long an allocation waits for room; 0 for as long as the client waits")
	fs.StringVar(&o.metricsAddr, "metrics", "", "`address` for GET /metrics (default: none)")
	logLevelFlag(fs, &o.logLevel)
	return o
}

// gmsOptions are the flags of `remuda gms`.
type gmsOptions struct {
	cfg         gms.Config
	gpus        commaList
	backend     string
	cudaLibrary string
	host        hostOptions
	metricsAddr string
	logLevel    string
}

type hostOptions struct {
	capacity    sizeFlag
	granularity sizeFlag
	slowRelease time.Duration
	dir         string
	// given are the flags of the host backend that were set.
	given []string
}

// run opens what the service needs, and runs it with its metrics until one of them
// ends.
func (o *gmsOptions) run(ctx context.Context) error {
	service, kept, err := keeper.Connect(keeper.FD)
	if err != nil {
		return fmt.Errorf("started by hand? run 'remuda gms': %w", err)
	}
	defer service.Close()
	o.cfg.Keeper, o.cfg.Kept, o.cfg.Starts = service, kept, service.Starts()
	o.cfg.OnReady = func() { _ = service.Ready() } // a keeper that has ended is noticed below
	gpus, err := o.openGPUs()
	if err != nil {
		return err
	}
	defer func() {
		for _, g := range gpus {
			if err := g.Backend.Close(); err != nil {
				o.cfg.Logger.Warn("cannot close the memory of a GPU", "gpu", g.UUID, "error", err)
			}
		}
	}()
	o.cfg.GPUs = gpus
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o.cfg.Metrics = registry
	server, err := gms.New(o.cfg)
	if err != nil {
		return usageError{err.Error()}
	}
	parts := []func(context.Context) error{server.Run, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-service.Done():
			return errors.New("the keeper has ended: so does the service")
		}
	}}
	if o.metricsAddr != "" {
		l, err := net.Listen("tcp", o.metricsAddr)
		if err != nil {
			return fmt.Errorf("-metrics: %w", err)
		}
		parts = append(parts, metricsPart(l, registry, o.cfg.Logger))
	}
	return runTogether(ctx, parts...)
}

// openGPUs makes the backend of each GPU.
func (o *gmsOptions) openGPUs() ([]gms.GPU, error) {
	var gpus []gms.GPU
	var errs []error
	add := func(uuid string, b backend.Backend, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		gpus = append(gpus, gms.GPU{UUID: uuid, Backend: b})
	}
	switch o.backend {
	case "host":
		if len(o.gpus.values) == 0 {
			return nil, usagef("-gpu is required with -backend host: the UUIDs of the GPUs to emulate")
		}
		for _, value := range o.gpus.values {
			uuid, size, own := strings.Cut(value, "=")
			capacity := o.host.capacity
			if own {
				if err := capacity.Set(size); err != nil {
					add(uuid, nil, usagef("-gpu %s: %v", value, err))
					continue
				}
			}
			b, err := host.New(host.Config{GPU: uuid, Dir: o.host.dir, Capacity: uint64(capacity), Granularity: uint64(o.host.granularity), SlowRelease: o.host.slowRelease})
			if err != nil {
				err = fmt.Errorf("-gpu %s: %w", value, err)
			}
			add(uuid, b, err)
		}
	case "cuda":
		if len(o.host.given) > 0 {
			return nil, usagef("%s: only valid with -backend host", strings.Join(o.host.given, ", "))
		}
		uuids := o.gpus.values
		if len(uuids) == 0 {
			devices, err := cuda.Devices(o.cudaLibrary)
			if err != nil {
				return nil, err
			}
			for _, d := range devices {
				uuids = append(uuids, d.UUID)
			}
		}
		for _, uuid := range uuids {
			b, err := cuda.New(cuda.Config{Library: o.cudaLibrary, GPU: uuid})
			add(uuid, b, err)
		}
	default:
		return nil, usagef("-backend is %q: must be host or cuda", o.backend)
	}
	if err := errors.Join(errs...); err != nil {
		for _, g := range gpus {
			_ = g.Backend.Close()
		}
		return nil, err
	}
	return gpus, nil
}

// metricsPart serves GET /metrics. It owns the listener.
func metricsPart(l net.Listener, registry *prometheus.Registry, logger hclog.Logger) func(context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	return func(ctx context.Context) error {
		logger.Info("serving metrics", "address", l.Addr())
		defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("metrics: %w", err)
		}
		return nil
	}
}

// runTogether runs parts of a program until the first one ends, ends the others,
// and returns what went wrong.
func runTogether(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	var errs []error
	for range parts {
		err := <-ended
		if err == nil && ctx.Err() == nil {
			err = errors.New("a component has stopped")
		}
		errs = append(errs, err)
		cancel()
	}
	return errors.Join(errs...)
}

// commaList is a flag with values that are separated by commas, and that may be
// repeated.
type commaList struct {
	values []string
}

var _ flag.Value = (*commaList)(nil)

// String is the list as it is given.
func (l *commaList) String() string { return strings.Join(l.values, ",") }

// Set adds values.
func (l *commaList) Set(s string) error {
	for _, v := range strings.Split(s, ",") {
		if v = strings.TrimSpace(v); v == "" {
			return fmt.Errorf("%q has an empty value", s)
		}
		l.values = append(l.values, v)
	}
	return nil
}

// sizeFlag is a flag in bytes.
type sizeFlag uint64

var _ flag.Value = (*sizeFlag)(nil)

// String is the size in bytes.
func (f *sizeFlag) String() string { return fmt.Sprint(uint64(*f)) }

// Set reads a size with its unit.
func (f *sizeFlag) Set(s string) error {
	n, err := bytesize.Parse(s)
	*f = sizeFlag(n)
	return err
}
