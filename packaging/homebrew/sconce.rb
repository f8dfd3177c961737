# sconce for Homebrew: `brew install --formula ./packaging/homebrew/sconce.rb`.
#
# Set URL and hash at each release.
class Sconce < Formula
  desc "Runs embedding and language models on placements proven on your machine"
  homepage "https://example.org/sconce"
  url "https://example.org/sconce/archive/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/cli")
    generate_completions_from_executable(bin/"sconce", "completions")
    system bin/"sconce", "man", man1
  end

  service do
    run [opt_bin/"sconce", "serve", "sentence-transformers/all-MiniLM-L6-v2", "--port", "8080"]
    keep_alive successful_exit: false
    log_path var/"log/sconce.log"
    error_log_path var/"log/sconce.log"
    environment_variables PATH: std_service_path_env
  end

  test do
    ENV["SCONCE_HOME"] = testpath/"evidence"
    assert_match "\"engine\": \"candle\"", shell_output("#{bin}/sconce doctor --json")
  end
end
