package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/keeper"
	gmssocket "remuda/device-plugin/gms/socket"
)

func TestGMSKeeperUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {nil, "Socket must be set"},
		"an argument":    {[]string{"-socket", "s", "x"}, `unexpected argument "x"`},
		"no descriptors": {[]string{"-socket", "s", "-max-descriptors", "0"}, "Limits.Descriptors must be more than 0"},
		"a bad level":    {[]string{"-socket", "s", "-log-level", "x"}, "-log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			r := remuda(t, append([]string{"gms", "keeper"}, tc.args...)...)
			require.Equal(t, exitUsage, r.code)
			require.Contains(t, r.errout, tc.want)
		})
	}
}

// TestGMSKeeper runs one, has it keep something, and ends it.
func TestGMSKeeper(t *testing.T) {
	dir, err := os.MkdirTemp("", "keeper") // a short path
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sock := filepath.Join(dir, "sock")
	ctx, stop := context.WithCancel(t.Context())
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	code := make(chan int, 1)
	go func() { code <- p.run([]string{"gms", "keeper", "-socket", sock}) }()
	c, err := keeper.Open(sock, nil)
	require.NoError(t, err)
	defer c.Close()
	limit, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	require.NoError(t, c.Save(limit, "r", []byte("blob"), nil))
	blob, _, found, err := c.Load(limit, "r")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "blob", string(blob))
	second := remuda(t, "gms", "keeper", "-socket", sock)
	require.Equal(t, exitFailed, second.code)
	require.Contains(t, second.errout, gmssocket.ErrInUse.Error())
	stop()
	require.Equal(t, exitOK, <-code)
}
