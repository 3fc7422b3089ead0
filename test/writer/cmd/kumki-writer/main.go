// Command kumki-writer writes to any PostgreSQL until it is told to stop (SIGINT, SIGTERM or -for), reads everything back, and
// prints as JSON what was lost, the longest write outage and whether two servers took writes at one time.
// It exits with 1 when an acknowledged row is missing or two primaries were seen.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kumki-dev/kumki/test/writer"
	"github.com/kumki-dev/kumki/test/writer/netns"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kumki-writer:", err)
		os.Exit(1)
	}
}

func run() error {
	var config writer.Config
	dsn := flag.String("dsn", "", "connection string or URI; give the password by PGPASSWORD, PGPASSFILE or -dsn-file, not here")
	dsnFile := flag.String("dsn-file", "", "file with the connection string, read anew before each connection")
	ns := flag.String("netns", "", "connect from this network namespace, for example /run/netns/NODE")
	duration := flag.Duration("for", 0, "stop after this long; 0: on SIGINT or SIGTERM")
	verify := flag.Duration("verify-timeout", time.Minute, "how long to try to read everything back")
	flag.IntVar(&config.Connections, "connections", 4, "connections that write at the same time")
	flag.IntVar(&config.Rows, "rows", 2, "rows of one transaction")
	flag.DurationVar(&config.Pause, "pause", 5*time.Millisecond, "pause of a connection between two transactions")
	flag.DurationVar(&config.ConnectTimeout, "connect-timeout", time.Second, "of one attempt")
	flag.DurationVar(&config.StatementTimeout, "statement-timeout", 2*time.Second, "how long to wait for an answer")
	flag.StringVar(&config.Table, "table", "kumki_writer", "table, made if need be")
	flag.Parse()
	if (*dsn == "") == (*dsnFile == "") {
		return errors.New("give either -dsn or -dsn-file")
	}
	config.DSN = source(*dsn, *dsnFile)
	if *ns != "" {
		config.Dial = netns.Dialer{Path: *ns}.DialContext
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	return write(ctx, config, *verify)
}

func source(dsn, file string) func() (string, error) {
	return func() (string, error) {
		if file == "" {
			return dsn, nil
		}
		data, err := os.ReadFile(file)
		return strings.TrimSpace(string(data)), err
	}
}

func write(ctx context.Context, config writer.Config, timeout time.Duration) error {
	w, start := writer.New(config), time.Now()
	if err := w.Run(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	report, err := w.Verify(ctx, start)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(report); err != nil {
		return err
	}
	if report.LostRows > 0 || report.Torn > 0 || report.TwoPrimaries > 0 {
		return fmt.Errorf("%d acknowledged rows lost, %d transactions torn, %d acknowledgements by a second primary",
			report.LostRows, report.Torn, report.TwoPrimaries)
	}
	return nil
}
