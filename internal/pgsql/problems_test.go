package pgsql

import "testing"

func TestSettingProblems(t *testing.T) {
	for name, tc := range map[string]struct {
		row  []string
		want int
	}{
		"taken out of the file":  {[]string{"", `parameter "max_connections" cannot be changed without restarting the server`, "", ""}, 0},
		"a line that is no line": {[]string{"", "syntax error", "postgresql.conf", "3"}, 1},
		"an unknown parameter":   {[]string{"no_such_parameter", "unrecognized configuration parameter", "postgresql.conf", "4"}, 1},
	} {
		if got := settingProblems([][]string{tc.row}, nil); len(got) != tc.want {
			t.Errorf("%s: %v, want %d", name, got, tc.want)
		}
	}
}
