package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/doctor"
)

func TestDeviceDoctor(t *testing.T) {
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1") // nobody listens there
	dir := t.TempDir()
	var out, errs bytes.Buffer
	p := &program{ctx: t.Context(), stdout: &out, stderr: &errs}
	code := p.run([]string{"device", "doctor", "-json", "-plugin-dir", dir, "-gms-socket-dir", dir})
	require.Equal(t, exitFailed, code, "a directory without the plugin is a problem; it said %s", &errs)
	var findings []doctor.Finding
	require.NoError(t, json.Unmarshal(out.Bytes(), &findings))
	require.Equal(t, "plugin file", findings[0].Check)
	require.Equal(t, doctor.Problem, findings[0].Status)
	require.Contains(t, findings[0].Found, dir)
	require.Empty(t, errs.String(), "the findings say it all")

	out.Reset()
	require.Equal(t, exitFailed, p.run([]string{"device", "doctor", "-plugin-dir", dir}))
	require.Contains(t, out.String(), "PROBLEM  plugin file: no remuda-device in "+dir)
	require.Contains(t, out.String(), "WARNING  Nomad: ")
	require.Equal(t, exitUsage, p.run([]string{"device", "doctor", "extra"}))
}
