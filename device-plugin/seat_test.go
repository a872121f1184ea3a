package deviceplugin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	deviceplugin "remuda/device-plugin"
)

func TestParseSeat(t *testing.T) {
	for _, tc := range []struct {
		name, id string
		want     deviceplugin.Seat
		wantErr  string
	}{
		{name: "first", id: "GPU-1#0", want: deviceplugin.Seat{GPU: "GPU-1", Index: 0}},
		{name: "last", id: "GPU-1#63", want: deviceplugin.Seat{GPU: "GPU-1", Index: 63}},
		{name: "empty", id: "", wantErr: "must be <GPU-UUID>#<seat>"},
		{name: "no seat", id: "GPU-1", wantErr: "must be <GPU-UUID>#<seat>"},
		{name: "no GPU", id: "#1", wantErr: "UUID is empty"},
		{name: "empty seat", id: "GPU-1#", wantErr: `seat is ""`},
		{name: "not a number", id: "GPU-1#x", wantErr: `seat is "x"`},
		{name: "negative", id: "GPU-1#-1", wantErr: `seat is "-1"`},
		{name: "leading zero", id: "GPU-1#01", wantErr: `seat is "01"`},
		{name: "plus sign", id: "GPU-1#+1", wantErr: `seat is "+1"`},
		{name: "too large", id: "GPU-1#64", wantErr: "0 to 63"},
		{name: "two seats", id: "GPU-1#0#1", wantErr: `seat is "0#1"`},
		{name: "comma", id: "GPU-1,GPU-2#0", wantErr: "','"},
		{name: "space", id: "GPU 1#0", wantErr: "' '"},
		{name: "newline", id: "GPU\n1#0", wantErr: `'\n'`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := deviceplugin.ParseSeat(tc.id)
			if tc.wantErr != "" {
				require.ErrorIs(t, err, deviceplugin.ErrBadSeat)
				require.ErrorContains(t, err, tc.wantErr)
				require.ErrorContains(t, err, fmt.Sprintf("%q", tc.id))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestSeatRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := deviceplugin.Seat{
			GPU:   rapid.StringMatching(`GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).Draw(t, "gpu"),
			Index: rapid.IntRange(0, deviceplugin.MaxSeats-1).Draw(t, "index"),
		}
		got, err := deviceplugin.ParseSeat(want.String())
		if err != nil || got != want {
			t.Fatalf("ParseSeat(%q) = %+v, %v", want, got, err)
		}
	})
}

func FuzzParseSeat(f *testing.F) {
	for _, s := range []string{"GPU-1#0", "GPU-1#01", "#", "a#b#c", "\x00#1", "GPU-é#1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		seat, err := deviceplugin.ParseSeat(id)
		if err != nil {
			if !errors.Is(err, deviceplugin.ErrBadSeat) {
				t.Fatalf("ParseSeat(%q): %v is no ErrBadSeat", id, err)
			}
			return
		}
		if seat.String() != id {
			t.Fatalf("ParseSeat(%q) prints as %q", id, seat)
		}
		if strings.ContainsAny(seat.GPU, ", \n\x00") {
			t.Fatalf("ParseSeat(%q) let a separator through", id)
		}
	})
}
