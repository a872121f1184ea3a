package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/proclog"
)

func TestGMSMistakesAreExplained(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no backend":         {[]string{"-gpu", "GPU-1"}, `-backend is "": must be host or cuda`, exitUsage},
		"unknown backend":    {[]string{"-gpu", "GPU-1", "-backend", "rocm"}, `-backend is "rocm"`, exitUsage},
		"host without GPUs":  {[]string{"-backend", "host"}, "-gpu is required with -backend host", exitUsage},
		"host flags on cuda": {[]string{"-backend", "cuda", "-host-capacity", "1GiB", "-host-slow-release", "1s"}, "-host-capacity, -host-slow-release: only valid with -backend host", exitUsage},
		"no size":            {[]string{"-backend", "host", "-gpu", "GPU-1", "-host-capacity", "much"}, `size "much"`, exitUsage},
		"no size of a GPU":   {[]string{"-backend", "host", "-gpu", "GPU-1=much"}, `-gpu GPU-1=much: size "much"`, exitUsage},
		"no granularity":     {[]string{"-backend", "host", "-gpu", "GPU-1", "-host-granularity", "1000"}, "no multiple of the page size", exitFailed},
		"an empty GPU":       {[]string{"-backend", "host", "-gpu", "a,,b"}, "has an empty value", exitUsage},
		"no patience":        {[]string{"-backend", "host", "-gpu", "GPU-1", "-hang-timeout", "0s"}, "-hang-timeout is 0s", exitUsage},
		"twice the same GPU": {[]string{"-backend", "host", "-gpu", "GPU-1,GPU-1"}, `GPU "GPU-1"`, exitUsage},
		"arguments":          {[]string{"-backend", "host", "-gpu", "GPU-1", "more"}, `unexpected argument "more"`, exitUsage},
		"a metrics address":  {[]string{"-backend", "host", "-gpu", "GPU-1", "-metrics", "nowhere"}, "-metrics: listen", exitFailed},
		"a driver":           {[]string{"-backend", "cuda", "-cuda-library", filepath.Join(dir, "none.so")}, "none.so", exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r := remuda(t, append([]string{"gms", "-socket-dir", dir}, c.args...)...)
			require.Equal(t, c.code, r.code, r.errout)
			require.Contains(t, r.errout, c.want)
		})
	}
}

// TestGMSServesEveryGPUAndTag: with the flags as scripts give them.
func TestGMSServesEveryGPUAndTag(t *testing.T) {
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv(gmsSocketDirEnv, dir)
	ctx, stop := context.WithCancel(t.Context())
	log := &proclog.Buffer{}
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: io.Discard, stderr: log}
	code := make(chan int, 1)
	go func() {
		code <- p.run([]string{"gms", "-backend", "host", "-gpu", "GPU-1=4MiB,GPU-2", "-gpu", "GPU-3", "-host-capacity", "8MiB",
			"-metrics", "127.0.0.1:0"})
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "gms is ready") && strings.Contains(log.String(), "serving metrics")
	}, 10*time.Second, time.Millisecond, "%s", log)
	ask := func(gpu, tag string, m ...wire.Message) (out wire.Message) {
		socket := filepath.Join(dir, "gms_"+gpu+"_"+tag+".sock")
		if tag != "weights" {
			socket = filepath.Join(dir, "gms.sock")
			m = append([]wire.Message{&wire.OpenUnitRequest{GPU: gpu, Tag: tag}}, m...)
		}
		c, err := wire.Dial(socket)
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		for _, m := range m {
			require.NoError(t, c.Write(m, -1))
			out, _, err = c.Read(0, false)
			require.NoError(t, err)
		}
		return out
	}
	for _, gpu := range []string{"GPU-1", "GPU-2", "GPU-3"} {
		for _, tag := range []string{"weights", "model@7"} {
			require.Equal(t, wire.StateEmpty, ask(gpu, tag, &wire.GetRuntimeStateRequest{}).(*wire.GetRuntimeStateResponse).State)
		}
	}
	six := []wire.Message{&wire.HandshakeRequest{LockType: wire.RW}, &wire.AllocateRequest{Size: 6 << 20}}
	require.IsType(t, &wire.ErrorResponse{}, ask("GPU-1", "weights", six...), "its own capacity is smaller")
	require.EqualValues(t, 6<<20, ask("GPU-2", "weights", six...).(*wire.AllocateResponse).AlignedSize)

	_, address, _ := strings.Cut(log.String(), "address=")
	resp, err := http.Get("http://" + strings.Fields(address)[0] + "/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Contains(t, string(body), `remuda_gms_capacity_bytes{gpu="GPU-1"} 4.194304e+06`)
	stop()
	require.Equal(t, exitOK, <-code, "%s", log)
}

// TestPartsEndTogether: whichever part ends takes the others with it.
func TestPartsEndTogether(t *testing.T) {
	waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
	broken := errors.New("broken")
	require.ErrorIs(t, runTogether(t.Context(), waits, func(context.Context) error { return broken }, waits), broken)
	require.ErrorContains(t, runTogether(t.Context(), waits, func(context.Context) error { return nil }), "a component has stopped")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, runTogether(ctx, waits, waits))
}

func TestMetricsEndWithTheirListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	logger, err := (&program{stderr: io.Discard}).logger("gms", "error")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.ErrorContains(t, metricsPart(l, nil, logger)(t.Context()), "metrics:")
}
